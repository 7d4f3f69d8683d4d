"""Compares what a run cost with what was promised: bytes that ranks hold, silence inside `no_sync`, and overlap."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from properties.judging.gathered import Moment
from properties.judging.traffic import REDUCTIONS, elements
from properties.naming import parameter_name
from properties.trial import Run
from properties.verdict import LawBroken, SilentlyWrong, Wasteful
from worlds.contract import MESSAGES, Collective, Passage, RankReport

# A collective, and how many its rank has launched before it.
Launch: TypeAlias = tuple[int, Passage]

NOTING = "properties.ranks.launched:note_program"
# Where it can be told what ranks wait for, and why nowhere else.
NOTED = {
    "sim": "what ranks wait for is noted on the simulated world alone. The script runs this program, and notes nothing."
}
WEIGHING = "properties.ranks.held_bytes:weigh_program"
# Where bytes can be told, and why nowhere else.
WEIGHED = {
    "sim": "bytes are counted on the simulated world alone, as a real backend's own threads hold tensors for some time "
    "after a wait. The script runs this program, and counts none."
}


def bytes_held(run: Run, shares: Mapping[int, tuple[int, int]], headline: str) -> None:
    """All ranks together hold no more than the most, after each of these events, and no less than the least."""
    for place, (least, most) in shares.items():
        each = [seen["bytes"][place] for seen in run.observations]
        if not least <= sum(each) <= most:
            wanted = f"{least}" if least == most else f"between {least} and {most}"
            words = f"{headline} {_after(place)} ranks hold {' + '.join(map(str, each))} = {sum(each)} bytes"
            raise _held(sum(each) > most)(f"{words} where it must be {wanted}.", run.scenario, run.outcome)


def _held(more: bool) -> type[LawBroken]:
    """To hold less than is needed is no waste: something is kept out of sight, in fewer bits, or not at all."""
    return Wasteful if more else SilentlyWrong


def _after(place: int) -> str:
    return "After construction" if place < 0 else f"After event {place}"


def slices_held(run: Run, shares: Mapping[int, tuple[int, ...]], headline: str) -> None:
    """Each rank holds so many bytes after each of these events."""
    for place, wanted in shares.items():
        each = [seen["bytes"][place] for seen in run.observations]
        wrong = [rank for rank, right in enumerate(wanted) if each[rank] != right]
        if wrong:  # of ranks that hold more and others that hold less, one that holds more
            rank = max(wrong, key=lambda rank: each[rank] > wanted[rank])
            seen, right = each[rank], wanted[rank]
            words = f"{headline} {_after(place)} rank {rank} holds {seen} bytes where it must be {right}."
            raise _held(seen > right)(words, run.scenario, run.outcome)


def whole_at_a_time(run: Run, rank: int, place: int, wanted: Sequence[Moment], headline: str) -> None:
    """At each moment of a Backward a rank holds what it must."""
    for (kind, which, held, gradients), right in zip(run.observations[rank]["moments"][place], wanted, strict=True):
        when = f"when {parameter_name(which)}.grad becomes final"
        if kind == "forward":
            when = f"when {'the forward' if which < 0 else f'forward of unit{which}'} begins"
        rest = "beside whole gradients and what autograd keeps"
        for seen, must, what in ((gradients, right.gradients, "of whole gradients"), (held, right.held, rest)):
            if must is not None and seen != must:
                words = f"{headline} In event {place}, {when}, rank {rank} holds {seen} bytes {what}"
                raise _held(seen > must)(f"{words} where it must be {must}.", run.scenario, run.outcome)


def silent_inside_no_sync(run: Run, reference: Run, headline: str) -> None:
    """Ranks issue nothing in a micro-batch inside `no_sync`, unless the whole run issues the same without those.

    Then it is something due anyhow, such as parameters that the next forward waits for. Of stage 3 only reductions
    count: in every micro-batch it puts parameters together besides, by gathering or broadcasting. To be alone with a
    collective costs nothing.
    """
    if run.scenario.world_size == 1:
        return
    for rank, (mine, theirs) in enumerate(zip(run.collectives, reference.collectives, strict=True)):
        inside = [call for begin, end in run.observations[rank]["local"] for call in mine[begin:end]]
        told = [list(filter(_reduces, calls)) if run.stage == 3 else list(calls) for calls in (inside, mine, theirs)]
        if told[0] and told[1] != told[2]:
            words = f"{headline} There rank {rank} issues {told[0][0]}"
            words += f", and {len(told[1])} collectives in all, {len(told[2])} without those micro-batches."
            raise Wasteful(words, run.scenario, run.outcome, choices=run.choices)


def _reduces(call: Collective) -> bool:
    return bool(call.reduction)


def overlapping(run: Run, place: int, least: int, several: bool, headline: str) -> bool:
    """Of a Backward's reductions of so many elements at least, the first is launched before the last hook fires, and
    none is waited for before another that is launched by then; to look whether it is done is no wait.

    ``several``: there must be several of them; else what goes out in one has nothing to overlap with. Where no hook
    tells when gradients are final, as of parameters that an implementation has put in the place of the model's, nothing
    is known.

    Returns whether every rank has launched two before its last hook fired.
    """
    overlap = True
    for rank, (report, seen) in enumerate(zip(run.outcome, run.observations, strict=True)):
        (_, begin), *hooks = seen["launched"][place]
        sent = [launch for launch in _reduced(report, least) if launch[0] >= begin]
        if len(hooks) < len(run.scenario.parameters) or not sent:
            overlap = False
            continue
        last, end = hooks[-1]
        early = [launch for launch in sent if launch[0] < end]
        words = f"{headline} In event {place} rank {rank} launches"
        if not early and (several or len(sent) > 1):
            words += f" its first reduction, {sent[0][1].collective}, only when"
            words += f" {parameter_name(last)}.grad, the last of {len(hooks)} gradients, is final."
            raise Wasteful(words, run.scenario, run.outcome, choices=run.choices)
        for one, other in pairwise(early):
            if one[1].waited is not None and not one[1].polled and one[1].waited < other[1].launched:
                words += f" {one[1].collective} {_once(hooks, one)}, and waits for it before it launches"
                words += f" {other[1].collective} {_once(hooks, other)}; backward still runs then."
                raise Wasteful(words, run.scenario, run.outcome, choices=run.choices)
        overlap = overlap and len(early) > 1
    return overlap


def _reduced(report: RankReport, least: int) -> list[Launch]:
    """What adds up so many elements or more; nothing where the world gives no timeline."""
    places = (place for place, call in enumerate(report.collectives) if call.operation not in MESSAGES)
    return [
        (place, passage)
        for place, passage in zip(places, report.timeline, strict=False)
        if passage.collective.operation in REDUCTIONS and elements(passage.collective) >= least
    ]


def _once(hooks: Sequence[tuple[int, int]], launch: Launch) -> str:
    """After which hook something was launched, in words."""
    final = [index for index, launched in hooks if launched <= launch[0]]
    return f"once {parameter_name(final[-1])}.grad is final" if final else "before any gradient is final"
