"""The messages of a collective as a diagram: a line for each rank, steps from left to right, an arrow per message."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep.oracle.ring import Message
from lockstep.pictures.pages import filled

LEFT, TOP, COLUMN, ROW = 64, 58, 84, 44  # in front of the first step, above the first rank, of a step, between ranks
SLANT = 60  # how far an arrow goes to the right
HUE = 137.5  # degrees between the colours of two chunks, the golden angle: no two near numbers look alike


@dataclass(frozen=True)
class Arrow:
    """A message from (x, y) to (to_x, to_y), with the number of its chunk and more words for a pointer over it."""

    x: float
    y: float
    to_x: float
    to_y: float
    chunk: int
    hue: float
    words: str


@dataclass
class Diagram:
    """The shapes, in pixels. ``phases``: (x, width, name); ``steps``: (x, number in its phase)."""

    width: float
    height: float
    names: list[tuple[float, str]]
    phases: list[tuple[float, float, str]] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)


def diagram(messages: Sequence[Message], world_size: int, element_bytes: int) -> Diagram:
    """The shapes of the picture. Messages of no elements are drawn too: they are sent."""

    def at(rank: int) -> float:
        return TOP + rank * ROW

    names = [(at(rank), f"rank {rank}") for rank in range(world_size)]
    made = Diagram(LEFT, at(world_size), names)
    for phase in dict.fromkeys(message.phase for message in messages):
        of_phase = [message for message in messages if message.phase == phase]
        count = 1 + max(message.step for message in of_phase)
        made.phases.append((made.width, count * COLUMN, phase))
        made.steps += [(made.width + step * COLUMN, step) for step in range(count)]
        for each in of_phase:
            x = made.width + each.step * COLUMN + (COLUMN - SLANT) / 2
            words = f"{phase}, step {each.step}: rank {each.sender} sends chunk {each.chunk} to rank {each.receiver}: "
            words += f"{each.elements} elements, {each.elements * element_bytes} bytes"
            ends = at(each.sender), x + SLANT, at(each.receiver)
            made.arrows.append(Arrow(x, *ends, each.chunk, each.chunk * HUE % 360, words))
        made.width += count * COLUMN
    made.width = max(made.width, LEFT + 4 * COLUMN) + 8
    return made


def svg(title: str, messages: Sequence[Message], world_size: int, element_bytes: int) -> str:
    """The diagram as a file of its own."""
    return filled("messages.svg.j2", title=title, diagram=diagram(messages, world_size, element_bytes))


def page(title: str, text: str, messages: Sequence[Message], world_size: int, element_bytes: int) -> str:
    """A page of its own: the diagram, and the schedule in words."""
    shapes = diagram(messages, world_size, element_bytes)
    return filled("messages.html.j2", title=title, text=text, diagram=shapes)
