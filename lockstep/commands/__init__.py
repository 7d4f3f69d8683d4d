"""Commands of `lockstep` that are no modules of their own elsewhere: `check`, `run`, `cost`, `diff`, `laws`, `claims`."""
