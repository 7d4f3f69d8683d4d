"""Happenings on ranks, in order and in words; of ranks that do the same, once."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.pictures.lanes import KINDS, Doing, Lane, Lanes, Transfer, size


@dataclass(frozen=True)
class Happening:
    """One line of the table. ``start`` and ``end``: milliseconds; ``held``: bytes then; each in words, or empty."""

    start: str
    end: str
    held: str
    what: str
    kind: str
    clash: bool = False


def alike(lanes: Lanes) -> Iterator[tuple[list[int], Lane]]:
    """Ranks that do the same at the same times, together."""
    kinds: dict[object, list[int]] = {}
    for lane in lanes.lanes:
        own = tuple(each.number for each in lanes.transfers if lane.rank in each.members)
        kinds.setdefault((lane.doings, own), []).append(lane.rank)
    for ranks in kinds.values():
        yield ranks, next(lane for lane in lanes.lanes if lane.rank == ranks[0])


def ranks_in_words(ranks: Sequence[int]) -> str:
    """rank 0, ranks 0-3, ranks 0,2."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    in_a_row = list(ranks) == list(range(ranks[0], ranks[-1] + 1))
    return f"ranks {ranks[0]}-{ranks[-1]}" if in_a_row else f"ranks {','.join(map(str, ranks))}"


def by_ranks(lanes: Lanes) -> list[tuple[str, list[Happening]]]:
    """The table."""
    return [(ranks_in_words(ranks), _of(lane, lanes)) for ranks, lane in alike(lanes)]


def _of(lane: Lane, lanes: Lanes) -> list[Happening]:
    held = dict(lane.held)
    own = [each for each in lanes.transfers if lane.rank in each.members]
    rows: list[tuple[float, int, Happening]] = []
    for doing in lane.doings:
        count = size(held[doing.end]) if doing.end in held else ""
        what = Happening(f"{doing.start:.3f}", f"{doing.end:.3f}", count, _does(doing), doing.kind)
        rows.append((doing.start, 1, what))
    for each in own:
        when = each.launched[lane.rank]
        rows.append((when, 0, Happening(f"{when:.3f}", "", "", _launches(each), "collective", each.clash)))
    return [what for _, _, what in sorted(rows, key=lambda each: each[:2])]


def _does(doing: Doing) -> str:
    match doing.kind:
        case "wait":
            return f"waits for collective {doing.name}"
        case "backward":
            return f"backward: the gradient of {doing.name} is final" if doing.name else "backward"
        case "forward":
            return f"forward through {doing.name}" if doing.name else "forward"
    return KINDS[doing.kind]


def _launches(transfer: Transfer) -> str:
    carries = f", {transfer.carries()}" if transfer.carries() else ""
    clash = "; DIFFERENT PARAMETERS MEET HERE" if transfer.clash else ""
    return f"launches {transfer.number}: {transfer.operation} of {size(transfer.bytes)}{carries}{clash}"
