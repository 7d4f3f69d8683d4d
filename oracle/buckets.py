"""The rule by which static buckets are filled: greedily, in the order given, each dtype apart, up to a cap."""

from collections.abc import Iterable

from lockstep.oracle.program import Scenario


def filled(scenario: Scenario, tensors: Iterable[int], cap: float | None) -> list[tuple[int, ...]]:
    """The tensors of each bucket. ``cap`` is in bytes; None: there is none.

    A tensor that would bring the bucket of its dtype beyond the cap begins a new one. So a tensor that is larger than
    the cap has a bucket of its own.
    """
    begun: list[list[int]] = []
    last: dict[str, list[int]] = {}  # the bucket being filled, by dtype
    for tensor in tensors:
        parameter = scenario.parameters[tensor]
        there = last.get(parameter.dtype)
        held = sum(scenario.parameters[each].nbytes for each in there or ())
        if there is None or (cap is not None and held + parameter.nbytes > cap):
            there = last[parameter.dtype] = []
            begun.append(there)
        there.append(tensor)
    return [tuple(each) for each in begun]
