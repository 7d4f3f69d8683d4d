"""Lanes for a terminal: a line of letters per rank, a line of digits for what travels, and a table of what happens."""

import textwrap
from collections.abc import Iterator, Sequence

from lockstep.pictures.happenings import alike, by_ranks, ranks_in_words
from lockstep.pictures.lanes import KINDS, Lanes

LETTERS = {"forward": "F", "backward": "B", "finish": "s", "optimizer": "O", "wait": "."}
LEFT = 11  # columns in front of a line
NUMBERS = "123456789abcdefghijklmnopqrstuvwxyz"  # of collectives; what comes after these starts again


def drawn(lanes: Lanes, width: int, table: bool = True) -> list[str]:
    """The picture in lines of at most ``width`` characters. ``table``: also, event by event, what each rank does."""
    if not lanes.end:
        return [lanes.title, "nothing takes any time"]
    columns = width - LEFT
    lines = [*textwrap.wrap(lanes.title, width), *textwrap.wrap(lanes.model, width), ""]
    for ranks, lane in alike(lanes):
        does = [(each.start, each.end, LETTERS[each.kind]) for each in lane.doings]
        own = [each for each in lanes.transfers if ranks[0] in each.members]
        sends = [(each.start, each.end, NUMBERS[(each.number - 1) % len(NUMBERS)]) for each in own]
        lines.append(f"{ranks_in_words(ranks):{LEFT}}{_line(does, lanes.end, columns)}".rstrip())
        if own:
            lines.append(f"{'  sends':{LEFT}}{_line(sends, lanes.end, columns)}".rstrip())
    lines.append(f"{'ms':{LEFT}}{_scale(lanes.end, columns)}")
    used = {doing.kind for lane in lanes.lanes for doing in lane.doings}
    key = [*(f"{letter} {KINDS[kind]}" for kind, letter in LETTERS.items() if kind in used)]
    lines += ["", *_whole([*key, "1, 2, ... collectives under way"], width), ""]
    lines += [f"{what + ':':14}{value}" for what, value in lanes.facts.items()]
    lines += ["", *textwrap.wrap(lanes.clock, width)]
    return lines + (["", *_table(lanes, width)] if table else [])


def _whole(parts: Sequence[str], width: int) -> list[str]:
    """Parts in lines that are broken only between them."""
    joined = "  ".join(part.replace(" ", "\xa0") for part in parts)
    return [line.replace("\xa0", " ") for line in textwrap.wrap(joined, width)]


def _line(pieces: Sequence[tuple[float, float, str]], end: float, columns: int) -> str:
    """Each piece as its character, as long as it takes; a short one still has a column of its own if one is free."""
    line = [" "] * columns
    for begin, stop, letter in sorted(pieces, key=lambda each: each[0] - each[1]):  # the longest first
        first = min(int(begin / end * columns), columns - 1)
        for column in range(first, max(first + 1, round(stop / end * columns))):
            line[min(column, columns - 1)] = letter
    return "".join(line)


def _scale(end: float, columns: int) -> str:
    """Times below the lines."""
    line = ""
    for quarter in range(5):
        told = f"{end * quarter / 4:.3g}"
        place = round(quarter / 4 * columns) - (0 if quarter == 0 else len(told) if quarter == 4 else len(told) // 2)
        line = line.ljust(place) + told
    return line


def _table(lanes: Lanes, width: int) -> Iterator[str]:
    """The happenings, in order; of ranks that do the same, once."""
    for ranks, happenings in by_ranks(lanes):
        yield ranks
        counted = any(each.held for each in happenings)
        yield f"{'from ms':>9} {'to ms':>9} {'held' if counted else '':>9}  what"
        for each in happenings:
            told = f"{each.start:>9} {each.end:>9} {each.held:>9}  "
            first, *rest = textwrap.wrap(each.what, max(20, width - len(told)))
            yield told + first
            yield from (" " * len(told) + line for line in rest)
