"""Commands that are no modules of their own elsewhere: `check`, `diff`, `exhaust`, `run`, `laws` and `claims`."""
