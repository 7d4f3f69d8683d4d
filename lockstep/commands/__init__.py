"""Commands of `lockstep` without modules of their own elsewhere: `check`, `run`, `cost`, `diff`, `laws` and `claims`."""
