"""Labels for the numbers on the wire: the elements whose gradients they are."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, zip_longest

from lockstep.oracle.fingerprint import coefficients
from lockstep.oracle.program import Scenario
from lockstep.properties.naming import element_name

Labels = Mapping[float, Sequence[str]]


def labels(scenario: Scenario, rank: int) -> Labels:
    """The possible labels of a number on the wire: a gradient of one micro-batch or an accumulated one, divided or not.

    The number includes the initial loss scale. Labels of undivided gradients come first. Gradients of the quadratic
    probe depend on the parameters and so change from step to step; they have no labels.
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
    """The labels of the numbers that each rank puts into one collective, empty if they have none.

    The second value says for each column if different parameters meet there.
    """
    # Equal numbers from several ranks are flags or padding, since no two gradients are equal.
    alike = [len(column) > 1 and len(set(column)) == 1 for column in zip(*sent.values(), strict=False)]
    meant = {
        rank: once([[] if same else by_rank[rank].get(value, []) for value, same in zip_longest(row, alike)], row)
        for rank, row in sent.items()
    }
    # A number may have several labels. If one label is possible on every rank, it is used. A number without a label,
    # for example a flag or a rounded sum, does not count as another parameter.
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
    """The possible labels of each number of a message, used as often as there are elements with that number.

    Further equal numbers are no gradients. For example, a flag may be 1, like a gradient.
    """
    seen = [sent[:place].count(value) for place, value in enumerate(sent)]
    return [names if number < len(names) else [] for names, number in zip(row, seen, strict=True)]
