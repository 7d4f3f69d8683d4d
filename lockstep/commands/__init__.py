"""Commands without modules of their own elsewhere: `check`, `diff`, `exhaust`, `run`, `cost`, `laws` and `claims`."""
