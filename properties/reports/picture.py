"""A picture of the communication: collective by collective, with ranks in rows and parameters in columns."""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

from lockstep.oracle.formats import FORMATS
from lockstep.oracle.program import Scenario
from lockstep.properties.members import WHOLE_WORLD
from lockstep.properties.reports.labels import Labels, labels, meanings
from lockstep.properties.reports.paragraphs import WIDTH, width
from lockstep.worlds.contract import MESSAGES, Collective, Outcome, members_of

WIDEST, LINE = 10, 96  # the most elements of a collective that are shown, and the most characters for them
BESIDE = 34  # the characters of a line that are not for elements, in a narrow terminal
INDENT = 4  # of the picture within a report
MOST = 8  # the most collectives that are shown
MEET = "different parameters meet here"  # beside a mark
Rows = dict[str, list[str]]  # the text of each column, by title


def picture(scenario: Scenario, outcome: Outcome, roles: Sequence[int] = (), whole: bool = False) -> list[str]:
    """Lines that show every collective that carried gradients, with its inputs and outputs if they were recorded.

    ``roles``: for each rank, the rank whose samples it has; empty: its own. ``whole``: show the broadcasts from rank 0
    instead of counting them. They are also shown if ranks do not agree on them. The shown results are observed ones. If
    a world reports none, the picture shows the sums of the sent numbers.
    """
    broadcasts, met = _shown(outcome, whole)
    observed = any(call.got is not None for report in outcome for call in report.collectives)
    called = [labels(scenario, rank) for rank in roles or range(scenario.world_size)]
    lines = [f"{broadcasts} broadcast{'s' if broadcasts > 1 else ''} from rank 0"] if broadcasts else []
    for number, meeting in enumerate(met[:MOST], 1):
        lines += [f"{number}. {meeting.title()}", *_drawn(meeting, called, observed)]
    return lines + ([f"... and {len(met) - MOST} more"] if len(met) > MOST else [])


def first_clash(
    scenario: Scenario, outcome: Outcome, roles: Sequence[int] = (), whole: bool = False
) -> tuple[str, list[str]]:
    """The first collective of the picture in which different parameters meet, with its number; and for each rank what
    it sends in the first such column: "rank 0 sends a[0] = 1". Empty if there is none.
    """
    called = [labels(scenario, rank) for rank in roles or range(scenario.world_size)]
    for number, meeting in enumerate(_shown(outcome, whole)[1], 1):
        sent, names, apart = _decoded(meeting, called)
        if any(apart):
            column = apart.index(True)
            told = [
                f"rank {rank} sends {names[rank][column]} = {_number(row[column])}"
                for rank, row in sent.items()
                if column < len(row) and names[rank][column]
            ]
            return f"{number}. {meeting.title()}", told
    return "", []


def _shown(outcome: Outcome, whole: bool) -> tuple[int, list["_Meeting"]]:
    """The number of broadcasts from rank 0 that are only counted, and the collectives that are shown."""
    usual = [[call for call in report.collectives if _is_usual(call)] for report in outcome]
    whole = whole or any(calls != usual[0] for calls in usual)
    timelines = [[call for call in report.collectives if whole or not _is_usual(call)] for report in outcome]
    return 0 if whole else len(usual[0]), _met(timelines)


def _is_usual(call: Collective) -> bool:
    return call.operation == "broadcast" and call.root == 0


@dataclass(frozen=True)
class _Meeting:
    """Matching calls by rank. ``ranks``: the number of all ranks. A message stands by itself."""

    calls: dict[int, Collective]
    ranks: int

    @property
    def first(self) -> Collective:
        return next(iter(self.calls.values()))

    @property
    def members(self) -> tuple[int, ...]:
        return members_of(self.first.group, self.ranks)

    @property
    def alike(self) -> bool:
        return len(set(self.calls.values())) == 1

    @property
    def agreed(self) -> bool:
        return len({call.agreed() for call in self.calls.values()}) == 1

    @property
    def reduces(self) -> bool:
        """True if all members call the same reduction, so that there is a result."""
        return self.agreed and len(self.calls) == len(self.members) and self.first.reduction != ""

    def title(self) -> str:
        """The call, and the ranks that made it unless every rank did."""
        first, called = self.first, ", ".join(map(str, self.calls))
        what = (
            str(first) if self.alike else f"{first.operation} of several sizes" if self.agreed else "the ranks disagree"
        )
        if first.operation in MESSAGES:
            return f"{what} by rank {called}"
        if self.members == (min(self.calls),):
            return f"{what} of rank {called} alone"
        among = "" if len(self.members) == self.ranks else f" among ranks {', '.join(map(str, self.members))}"
        if first.group.endswith(WHOLE_WORLD):
            among = f" on {WHOLE_WORLD}"
        return what + among + ("" if len(self.calls) == len(self.members) else f", only rank {called}")


def _met(timelines: Sequence[Sequence[Collective]]) -> list[_Meeting]:
    """The matching calls: those at the same place in the sequence of one group."""
    met: dict[tuple[Hashable, int], dict[int, Collective]] = {}
    issued = Counter[Hashable]()
    for calls in zip_longest(*timelines):
        for rank, call in enumerate(calls):
            if call is not None:
                sequence = (call.group, rank) if call.operation in MESSAGES else call.group
                met.setdefault((sequence, issued[rank, sequence]), {})[rank] = call
                issued[rank, sequence] += 1
    return [_Meeting(dict(sorted(calls.items())), len(timelines)) for calls in met.values()]


def _drawn(meeting: _Meeting, called: Sequence[Labels], observed: bool) -> list[str]:
    """The input of each rank, a mark where different parameters meet, and the result of a reduction."""
    calls = meeting.calls
    its_own = {rank: "" if meeting.alike else str(call) for rank, call in calls.items()}
    if all(call.sent is None or not call.count for call in calls.values()):  # not recorded, a receive, or a barrier
        return [f"   rank {rank} calls {words}" for rank, words in its_own.items() if words]
    sent, names, apart = _decoded(meeting, called)
    cells = {
        rank: [
            f"{name} = {_number(value)}" if name else _number(value)
            for name, value in zip(names[rank], row, strict=True)
        ]
        for rank, row in sent.items()
    }
    results: Rows = {}
    if meeting.reduces:
        results = _seen(meeting, max(map(len, sent.values()))) if observed else _worked_out(meeting, sent)
    widths = [max(map(len, column)) for column in zip_longest(*cells.values(), *results.values(), fillvalue="")]
    # The first column is shown even if it is too wide.
    line = LINE if width() == WIDTH else width() - BESIDE
    widths = widths[: max(1, sum(end <= line for end in accumulate(width + 3 for width in widths)))]
    more = " | ..." if any(call.sent is not None and len(call.sent) > len(widths) for call in calls.values()) else ""

    def row(title: str, parts: list[str]) -> str:
        padded = " | ".join(part.ljust(width) for part, width in zip(parts, widths, strict=False))
        return f"   {title:17}| {padded}{more} |"

    lines = [line for rank, parts in cells.items() for line in _beside(row(f"rank {rank} sends", parts), its_own[rank])]
    if any(apart[: len(widths)]):
        marks = [("^" * width if each else "").ljust(width) for each, width in zip(apart, widths, strict=False)]
        lines += _beside(f"   {'':17}  {'   '.join(marks)}", MEET)
    lines += [row(title, parts) for title, parts in results.items() if any(parts[: len(widths)])]
    if meeting.reduces and observed:
        never = [rank for rank, call in calls.items() if call.got is None]
        lines += ["   no rank waits for it"] if never == [*calls] else [f"   rank {rank} never waits" for rank in never]
    return lines


def _decoded(
    meeting: _Meeting, called: Sequence[Labels]
) -> tuple[dict[int, list[float]], dict[int, list[str]], list[bool]]:
    """The first numbers that each rank sends, their labels, and by column whether different parameters meet."""
    calls = meeting.calls
    sent = {rank: [] if call.sent is None else call.sent[:WIDEST].tolist() for rank, call in calls.items()}
    # Integers are no gradients.
    return sent, *meanings(sent, {rank: called[rank] if call.dtype in FORMATS else {} for rank, call in calls.items()})


def _beside(line: str, words: str) -> list[str]:
    """The line followed by words or, if a narrow terminal has no room, with the words below it."""
    whole = f"{line}  {words}".rstrip()
    if width() == WIDTH or INDENT + len(whole) <= width():
        return [whole]
    return [line.rstrip(), f"   {'':17}  {words}"]


def _worked_out(meeting: _Meeting, sent: dict[int, list[float]]) -> Rows:
    """The sums of the sent numbers if they are to be added, because the results were not observed."""
    if meeting.first.reduction != "sum":
        return {}
    return {"they add up to": [_number(sum(values)) for values in zip(*sent.values(), strict=False)]}


def _seen(meeting: _Meeting, columns: int) -> Rows:
    """The results of ranks that waited. For a scatter, the part of each rank is in the columns of that part."""
    first, members = meeting.first, meeting.members
    starts = dict.fromkeys(members, 0)
    if first.operation == "reduce_scatter":
        gives = first.gives or (first.count // len(members),) * len(members)
        starts = dict(zip(members, accumulate(gives, initial=0), strict=False))
    # After a reduction to a root, the results on other ranks are not defined.
    got = {rank: call.got for rank, call in meeting.calls.items() if call.got is not None and call.root in (-1, rank)}
    rows = {}
    for rank, values in got.items():
        parts = [""] * starts[rank] + [_number(value) for value in values[:columns].tolist()] + [""] * columns
        rows[f"rank {rank} gets"] = parts[:columns]
    same = len(got) == len(members) and len({values.tobytes() for values in got.values()}) == 1
    if first.operation == "all_reduce" and same and (len(members) > 1 or meeting.ranks == 1):
        return {"every rank gets" if len(members) == meeting.ranks else "each gets": next(iter(rows.values()))}
    return rows


def _number(value: float) -> str:
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.{6 if abs(value) < 1e5 else 12}g}"
