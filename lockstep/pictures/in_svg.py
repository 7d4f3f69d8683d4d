"""Lanes as a diagram: the shapes of it, for the template ``lanes.svg.j2``."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from lockstep.pictures.happenings import by_ranks
from lockstep.pictures.lanes import KINDS, Doing, Lane, Lanes, Transfer, size
from lockstep.pictures.pages import filled

WIDTH, LEFT, RIGHT = 1040, 84, 16  # of the whole, in front of the lanes, behind them
TOP, ROW, GAP, HELD = 8, 26, 18, 34  # heights: above, of a bar, between ranks, of the curve of bytes held
LETTER = 7  # width of a letter in a bar, about


@dataclass(frozen=True)
class Bar:
    """A rectangle with words in it, where they fit, and more words for who points at it."""

    x: float
    y: float
    width: float
    kind: str
    words: str
    title: str


@dataclass
class Diagram:
    """The shapes, in pixels. ``ties`` join the bars of one collective: (x, from y, to y, words); ``launches`` are
    where a rank launched one: (x, y, words); ``curves``: the outline of bytes held, and its words.
    """

    height: float = TOP
    width: int = WIDTH
    left: int = LEFT
    row: int = ROW
    names: list[tuple[float, str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    ties: list[tuple[float, float, float, bool]] = field(default_factory=list)
    launches: list[tuple[float, float, str]] = field(default_factory=list)
    curves: list[tuple[str, float, str]] = field(default_factory=list)
    ticks: list[tuple[float, str]] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)


def diagram(lanes: Lanes) -> Diagram:
    """The shapes of the picture."""
    made, end = Diagram(), lanes.end or 1.0
    across = WIDTH - LEFT - RIGHT

    def at(time: float) -> float:
        return round(LEFT + time / end * across, 2)

    rows = {}
    for lane in lanes.lanes:
        made.names.append((made.height + ROW * 0.68, f"rank {lane.rank}"))
        made.bars += [_bar(at, made.height, each) for each in lane.doings]
        rows[lane.rank] = made.height + ROW + 4
        made.height += 2 * ROW + 4
        if lane.held:
            made.curves.append(_curve(at, made.height + 6, lane, end))
            made.height += HELD + 6
        made.height += GAP
    for each in lanes.transfers:
        made.bars += [_sent(at, rows[rank], each, rank) for rank in each.members]
        ys = [rows[rank] for rank in each.members]
        made.ties.append((at(each.start), min(ys), max(ys) + ROW, each.clash))
        made.launches += [
            (at(each.launched[rank]), rows[rank], f"rank {rank} launches {each.number} at {each.launched[rank]:.3f} ms")
            for rank in each.members
        ]
    made.ticks = [(at(end * part / 8), f"{end * part / 8:.3g}") for part in range(9)]
    used = {doing.kind for lane in lanes.lanes for doing in lane.doings}
    made.kinds = {kind: words for kind, words in KINDS.items() if kind in used}
    if lanes.transfers:
        made.kinds["collective"] = "collective under way"
    if any(each.clash for each in lanes.transfers):
        made.kinds["clash"] = "different parameters meet"
    made.height += 24
    return made


def svg(lanes: Lanes) -> str:
    """The diagram as a file of its own."""
    return filled("lanes.svg.j2", lanes=lanes, diagram=diagram(lanes))


def page(lanes: Lanes) -> str:
    """A page of its own: the diagram, and what happens when."""
    return filled("run.html.j2", lanes=lanes, diagram=diagram(lanes), told=by_ranks(lanes))


def _bar(at: Callable[[float], float], y: float, doing: Doing) -> Bar:
    x = at(doing.start)
    wide = max(1.0, at(doing.end) - x - 0.5)
    words = doing.name if len(doing.name) * LETTER < wide else ""
    told = f"{KINDS[doing.kind]} {doing.name}".strip()
    return Bar(x, y, wide, doing.kind, words, f"{told}: {doing.start:.3f} to {doing.end:.3f} ms")


def _sent(at: Callable[[float], float], y: float, transfer: Transfer, rank: int) -> Bar:
    x = at(transfer.start)
    wide = max(1.5, at(transfer.end) - x - 0.5)
    carries = transfer.carries()
    whole = f"{transfer.number}: {transfer.contents.get(rank) or size(transfer.bytes)}"
    words = next((each for each in (whole, str(transfer.number)) if len(each) * LETTER < wide), "")
    title = (
        f"{transfer.number}: {transfer.operation} of {size(transfer.bytes)} per rank, {transfer.start:.3f} to "
        f"{transfer.end:.3f} ms{f'; carries {carries}' if carries else ''}"
        f"{'; different parameters meet here' if transfer.clash else ''}"
    )
    return Bar(x, y, wide, "clash" if transfer.clash else "collective", words, title)


def _curve(at: Callable[[float], float], y: float, lane: Lane, end: float) -> tuple[str, float, str]:
    """The outline of bytes held, in steps; and the most of them, in words."""
    most = max(count for _, count in lane.held) or 1
    points = list(_steps(lane, end))
    outline = " ".join(f"{at(time)},{y + HELD - count / most * (HELD - 8):.1f}" for time, count in points)
    return f"{LEFT},{y + HELD} {outline} {at(end)},{y + HELD}", y + 10, f"held, at most {size(most)}"


def _steps(lane: Lane, end: float) -> Iterator[tuple[float, int]]:
    before, held = 0.0, lane.held[0][1]
    for time, count in lane.held:
        yield before, count
        yield time, count
        before, held = time, count
    yield end, held
