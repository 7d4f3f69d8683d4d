"""Commands without modules of their own elsewhere.

They are `check`, `diff`, `exhaust`, `run`, `cost`, `schedule`, `laws` and `claims`.
"""
