"""Commands of `lockstep` that are no modules of their own elsewhere: `check`, `exhaust`, `laws` and `claims`."""
