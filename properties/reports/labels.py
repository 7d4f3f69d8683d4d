"""Labels of the numbers on the wire: the elements whose gradients they are."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, zip_longest

from lockstep.oracle.fingerprint import coefficients
from lockstep.oracle.program import Scenario
from lockstep.properties.naming import element_name

Labels = Mapping[float, Sequence[str]]


def labels(scenario: Scenario, rank: int) -> Labels:
    """The possible labels of a number on the wire: a gradient of one micro-batch or accumulated, divided or not.

    Times the loss scale, as it is at the start. Of which element: that before dividing first. Gradients of the
    quadratic probe follow the parameters from step to step, so they have no name.
    """
    found: dict[float, list[str]] = {}
    if scenario.probe == "quadratic":
        return found
    scale = 1.0 if scenario.loss_scale is None else scenario.loss_scale.initial
    batches = coefficients(scenario, rank)
    for divisor in (1, scenario.world_size):
        for parameter, shape in enumerate(scenario.parameters):
            for element in range(shape.count):
                values = [scale * float(batch[parameter].reshape(-1)[element]) for batch in batches]
                for value in (*values, *accumulate(values)):
                    if value:
                        names = found.setdefault(value / divisor, [])
                        if (name := element_name(scenario, parameter, element)) not in names:
                            names.append(name)
    return found


def meanings(
    sent: Mapping[int, Sequence[float]], by_rank: Mapping[int, Labels]
) -> tuple[dict[int, list[str]], list[bool]]:
    """The labels of the numbers that each rank puts into one collective, empty if they have none; and, column
    by column, whether those of different parameters meet.
    """
    # What several ranks send alike is no gradient, since no two are alike: a flag, or padding.
    alike = [len(column) > 1 and len(set(column)) == 1 for column in zip(*sent.values(), strict=False)]
    meant = {
        rank: once([[] if same else by_rank[rank].get(value, []) for value, same in zip_longest(row, alike)], row)
        for rank, row in sent.items()
    }
    # A number may be that of several elements: what every rank may mean is what they mean. What has no name, such as a
    # flag, or a sum that was rounded, is no other parameter.
    columns = [[names for names in column if names] for column in zip_longest(*meant.values(), fillvalue=())]
    common = [
        [name for name in column[0] if all(name in names for names in column)] if column else [] for column in columns
    ]
    called = {
        rank: [(shared or names)[0] if names else "" for names, shared in zip(row, common, strict=False)]
        for rank, row in meant.items()
    }
    return called, [bool(column) and not shared for column, shared in zip(columns, common, strict=True)]


def once(row: Sequence[Sequence[str]], sent: Sequence[float]) -> list[Sequence[str]]:
    """The possible labels of each number of a message: as often as elements have it. Further numbers are no gradients:
    a flag may be 1, as a gradient is.
    """
    seen = [sent[:place].count(value) for place, value in enumerate(sent)]
    return [names if number < len(names) else [] for names, number in zip(row, seen, strict=True)]
