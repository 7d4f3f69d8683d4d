"""A picture of what went over the wire: collective by collective, rank under rank, parameter under parameter."""

from collections.abc import Callable
from itertools import accumulate, zip_longest

from oracle.fingerprint import coefficients
from oracle.formats import FORMATS
from oracle.program import Scenario
from properties.naming import element_name
from worlds.contract import Collective, Outcome

WIDEST, LINE = 10, 96  # elements of a collective that are shown, and the characters that they may take
MOST = 8  # collectives that are shown


def picture(scenario: Scenario, outcome: Outcome) -> list[str]:
    """Lines that show every collective that carried gradients. The run must have recorded contents."""
    labels = [_labels(scenario, rank) for rank in range(scenario.world_size)]
    timelines = [[call for call in report.collectives if call.operation != "broadcast"] for report in outcome]
    broadcasts = sum(call.operation == "broadcast" for call in outcome[0].collectives)
    lines = [f"{broadcasts} broadcast{'s' if broadcasts > 1 else ''} from rank 0"] if broadcasts else []
    issued = max(map(len, timelines), default=0)
    for number in range(min(issued, MOST)):
        calls = {rank: timeline[number] for rank, timeline in enumerate(timelines) if number < len(timeline)}
        lines += _collective(number, calls, labels)
    return lines + ([f"... and {issued - MOST} more"] if issued > MOST else [])


def _collective(number: int, calls: dict[int, Collective], labels: list[dict[float, list[str]]]) -> list[str]:
    """One collective: what each rank put in, where different parameters meet, and what came out of a sum."""
    everyone, agreed = len(calls) == len(labels), len(set(calls.values())) == 1
    sent = {rank: [] if call.sent is None else call.sent[:WIDEST].tolist() for rank, call in calls.items()}
    # What several ranks send alike is no gradient, since no two are alike: a flag, or padding.
    alike = [len(column) > 1 and len(set(column)) == 1 for column in zip(*sent.values(), strict=False)]
    meant: dict[int, list[list[str]]] = {
        rank: [[] if same else labels[rank].get(value, []) for value, same in zip_longest(row, alike)]
        if calls[rank].dtype in FORMATS  # integers are no gradients
        else [[]] * len(row)
        for rank, row in sent.items()
    }
    meant = {rank: _once(row, sent[rank]) for rank, row in meant.items()}
    # A number may be that of several elements: what every rank may mean is what they mean. What has no name, such as a
    # flag, or a sum that was rounded, is no other parameter.
    columns_meant = [[each for each in column if each] for column in zip_longest(*meant.values(), fillvalue=())]
    common = [
        [name for name in column[0] if all(name in each for each in column)] if column else []
        for column in columns_meant
    ]
    names = {
        rank: [(shared or each)[0] if each else "" for each, shared in zip(row, common, strict=False)]
        for rank, row in meant.items()
    }
    cells = {
        rank: [
            f"{name} = {_number(value)}" if name else _number(value)
            for name, value in zip(names[rank], row, strict=True)
        ]
        for rank, row in sent.items()
    }
    longest = max(map(len, cells.values()))
    totals = [_number(sum(values)) for values in zip(*sent.values(), strict=False)]
    widths = [max(len(cell) for row in (*cells.values(), totals) for cell in row[i : i + 1]) for i in range(longest)]
    # The first is shown however long it is.
    columns = max(min(longest, 1), sum(end <= LINE for end in accumulate(width + 3 for width in widths)))
    widths = widths[:columns]

    def row(title: str, parts: list[str]) -> str:
        padded = " | ".join(part.ljust(width) for part, width in zip(parts, widths, strict=False))
        more = " | ..." if any(call.sent is not None and len(call.sent) > columns for call in calls.values()) else ""
        return f"   {title:17}| {padded}{more} |"

    first = calls[min(calls)]
    who = "" if everyone else f", only rank {', '.join(map(str, calls))}"
    lines = [f"{number + 1}. {first}{who}" if agreed else f"{number + 1}. the ranks disagree{who}"]
    lines += [
        row(f"rank {rank} sends", parts) + ("" if agreed else f"  {calls[rank]}") for rank, parts in cells.items()
    ]
    apart = [bool(column) and not shared for column, shared in zip(columns_meant, common, strict=True)][:columns]
    if any(apart):
        marks = " | ".join(
            ("^" * width if each else "").ljust(width) for each, width in zip(apart, widths, strict=True)
        )
        lines.append(f"   {'':17}  {marks.replace('|', ' ')}  different parameters meet here")
    if agreed and everyone and first.reduction == "sum":
        if first.operation == "all_reduce":
            lines.append(row("every rank gets", totals))
        elif first.operation == "reduce_scatter":
            lines += _shares(first, totals[:columns], len(labels), row)
    return lines


def _once(row: list[list[str]], sent: list[float]) -> list[list[str]]:
    """What each number of a message may mean: as often as elements have it. What comes after these is no gradient: a
    flag that is 1, where a gradient is.
    """
    seen = [sent[:place].count(value) for place, value in enumerate(sent)]
    return [names if number < len(names) else [] for names, number in zip(row, seen, strict=True)]


def _shares(call: Collective, totals: list[str], ranks: int, row: Callable[[str, list[str]], str]) -> list[str]:
    """What each rank gets of a sum that is scattered, below its columns."""
    gives = call.gives or (call.count // ranks,) * ranks
    ends = list(accumulate(gives))
    mine = [
        [total if end - count <= place < end else "" for place, total in enumerate(totals)]
        for end, count in zip(ends, gives, strict=True)
    ]
    return [row(f"rank {rank} gets", parts) for rank, parts in enumerate(mine) if any(parts)]


def _labels(scenario: Scenario, rank: int) -> dict[float, list[str]]:
    """What a number on the wire may be: a gradient of one micro-batch or accumulated, before or after dividing.

    Times the loss scale, as it is at the start. Of which element: that before dividing first.
    """
    labels: dict[float, list[str]] = {}
    scale = 1.0 if scenario.loss_scale is None else scenario.loss_scale.initial
    batches = coefficients(scenario, rank)
    for divisor in (1, scenario.world_size):
        for parameter, shape in enumerate(scenario.parameters):
            for element in range(shape.count):
                values = [scale * float(batch[parameter].reshape(-1)[element]) for batch in batches]
                for value in (*values, *accumulate(values)):
                    if value:
                        names = labels.setdefault(value / divisor, [])
                        if (name := element_name(scenario, parameter, element)) not in names:
                            names.append(name)
    return labels


def _number(value: float) -> str:
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.{6 if abs(value) < 1e5 else 12}g}"
