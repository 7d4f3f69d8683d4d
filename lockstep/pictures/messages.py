"""The messages of a collective as a diagram: a line for each rank, steps from left to right, an arrow per message."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.oracle.ring import Message
from lockstep.pictures.pages import filled

LEFT, TOP, COLUMN, ROW = 64, 58, 84, 44  # in front of the first step, above the first rank, of a step, between ranks
GAP = 26  # more between two nodes
SLANT = 60  # how far an arrow goes to the right
LETTER = 7  # no letter of a phase's name is wider on average
HUE = 137.5  # degrees between the colours of two chunks, the golden angle: no two near numbers look alike


@dataclass(frozen=True)
class Arrow:
    """A message from (x, y) to (to_x, to_y), with the number of its chunk or piece and words for a pointer over it."""

    x: float
    y: float
    to_x: float
    to_y: float
    chunk: str
    hue: float
    words: str


@dataclass
class Diagram:
    """Shapes in pixels. ``phases``: (x, width, name); ``steps``: (x, number in its phase); ``nodes``: (y, name)."""

    width: float
    height: float
    names: list[tuple[float, str]]
    nodes: list[tuple[float, str]]
    phases: list[tuple[float, float, str]] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)


def diagram(messages: Sequence[Message], world_size: int, element_bytes: int, node: int | None = None) -> Diagram:
    """The shapes of the picture. Messages of no elements are drawn too: they are sent.

    ``node``: ranks per node, if the ranks are to be drawn in nodes.
    """

    def at(rank: int) -> float:
        return TOP + rank * ROW + (0 if node is None else GAP * (1 + rank // node))

    names = [(at(rank), f"rank {rank}") for rank in range(world_size)]
    firsts = [] if node is None else range(0, world_size, node)
    nodes = [(at(first) - ROW / 2 - 2, f"node {number}") for number, first in enumerate(firsts)]
    made = Diagram(LEFT, at(world_size - 1) + ROW, names, nodes)
    for phase in dict.fromkeys(message.phase for message in messages):
        of_phase = [message for message in messages if message.phase == phase]
        count = 1 + max(message.step for message in of_phase)
        width = max(count * COLUMN, 12 + LETTER * len(phase))
        made.phases.append((made.width, width, phase))
        made.steps += [(made.width + step * COLUMN, step) for step in range(count)]
        for each in of_phase:
            x = made.width + each.step * COLUMN + (COLUMN - SLANT) / 2
            words = (
                f"{phase}, step {each.step}: rank {each.sender} sends chunk {each.carries} to rank {each.receiver}: "
            )
            words += f"{each.elements} elements, {each.elements * element_bytes} bytes"
            ends = at(each.sender), x + SLANT, at(each.receiver)
            made.arrows.append(Arrow(x, *ends, each.carries, each.chunk * HUE % 360, words))
        made.width += width
    made.width = max(made.width, LEFT + 4 * COLUMN) + 8
    return made


def svg(title: str, messages: Sequence[Message], world_size: int, element_bytes: int, node: int | None = None) -> str:
    """The diagram as a file of its own."""
    return filled("messages.svg.j2", title=title, diagram=diagram(messages, world_size, element_bytes, node))


def page(
    title: str, text: str, messages: Sequence[Message], world_size: int, element_bytes: int, node: int | None = None
) -> str:
    """A page of its own: the diagram, and the schedule in words."""
    shapes = diagram(messages, world_size, element_bytes, node)
    return filled("messages.html.j2", title=title, text=text, diagram=shapes)
