"""Refusals of impossible arguments: one line that shows the value and the values that are possible."""


def check_at_least(least: int, **counts: int) -> None:
    """ValueError for a count below ``least``; it tells the count's name."""
    for name, count in counts.items():
        if count < least:
            raise ValueError(f"{name} {count}: give at least {least}")


def check_stage(stage: int) -> None:
    """ValueError for a stage that ZeRO does not have."""
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"stage {stage}: give 0, 1, 2 or 3")
