"""In which dtypes gradients travel."""

from properties.trial import Run
from properties.verdict import SilentlyWrong

# The dtypes that hold every value of a dtype.
HOLDS = {
    "float64": ("float64",),
    "float32": ("float32", "float64"),
    "float16": ("float16", "float32", "float64"),
    "bfloat16": ("bfloat16", "float32", "float64"),
}


def wide_enough(run: Run, headline: str) -> None:
    """For each dtype, as many elements as have a gradient to be reduced travel in it, or in one that holds it.

    Broadcasts are left out: they carry parameters.
    """
    scenario = run.scenario
    if scenario.world_size == 1:
        return
    due = dict.fromkeys(HOLDS, 0)
    for batch in scenario.microbatches:
        used = {scenario.tensor(parameter) for order in batch.orders for parameter in order}
        for tensor in used if batch.synchronize else ():
            parameter = scenario.parameters[tensor]
            for name, wider in HOLDS.items():
                due[name] += parameter.count if parameter.dtype in wider else 0
    for rank, calls in enumerate(run.collectives):
        for name, wider in HOLDS.items():
            sent = sum(each.count for each in calls if each.dtype in wider and each.operation != "broadcast")
            if sent < due[name]:
                words = f"At least {due[name]} elements must travel in {' or '.join(wider)}; rank {rank} sends {sent}."
                raise SilentlyWrong(f"{headline} {words}", scenario, run.outcome, choices=run.choices)
