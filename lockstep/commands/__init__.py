"""Commands of `lockstep` that are no modules of their own elsewhere: `check`, `diff`, `laws` and `claims`."""
