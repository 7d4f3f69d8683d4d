"""Check when collectives are launched: none inside `no_sync`, and some already during backward."""

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeAlias

from lockstep.properties.judging.traffic import REDUCTIONS, elements
from lockstep.properties.naming import parameter_name
from lockstep.properties.trial import Run
from lockstep.properties.verdict import Wasteful
from lockstep.worlds.contract import MESSAGES, Collective, Passage, RankReport

# A collective, preceded by the number that its rank has launched before it.
Launch: TypeAlias = tuple[int, Passage]

NOTING = "lockstep.properties.ranks.launched:note_program"
# The world on which waits can be observed, and the reason why others cannot.
NOTED = {
    "sim": "what ranks wait for is noted on the simulated world alone. The script runs this program, and notes nothing."
}


def silent_inside_no_sync(run: Run, reference: Run, headline: str) -> None:
    """Check that ranks issue nothing in a micro-batch inside `no_sync`.

    Collectives are allowed if the run without these micro-batches issues the same ones, because they are then needed
    anyway, for example for parameters that the next forward waits for. At stage 3 only reductions count, because
    parameters are gathered in every micro-batch. A single rank sends nothing.
    """
    if run.scenario.world_size == 1:
        return
    for rank, (mine, theirs) in enumerate(zip(run.collectives, reference.collectives, strict=True)):
        inside = [call for begin, end in run.observations[rank]["local"] for call in mine[begin:end]]
        told = [list(filter(_reduces, calls)) if run.stage == 3 else list(calls) for calls in (inside, mine, theirs)]
        if told[0] and told[1] != told[2]:
            words = f"{headline} There rank {rank} issues {told[0][0]}"
            words += f", and {len(told[1])} collectives in all, {len(told[2])} without those micro-batches."
            raise run.broken(Wasteful, words)


def _reduces(call: Collective) -> bool:
    return bool(call.reduction)


def overlapping(run: Run, place: int, least: int, several: bool, headline: str) -> bool:
    """Check that the reductions of a Backward overlap with it. Only reductions of at least ``least`` elements count.

    The first must be launched before the last hook fires. None may be waited for before another one that is launched by
    then; polling is no wait. ``several``: there must be several reductions; otherwise a single one has nothing to
    overlap with. If no hooks fire because the implementation has replaced the model's parameters, nothing can be
    checked. Returns true if every rank has launched two before its last hook fired.
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
            raise run.broken(Wasteful, words)
        for one, other in pairwise(early):
            if one[1].waited is not None and not one[1].polled and one[1].waited < other[1].launched:
                words += f" {one[1].collective} {_since(hooks, one)}, and waits for it before it launches"
                words += f" {other[1].collective} {_since(hooks, other)}; backward still runs then."
                raise run.broken(Wasteful, words)
        overlap = overlap and len(early) > 1
    return overlap


def _reduced(report: RankReport, least: int) -> list[Launch]:
    """The reductions of at least so many elements; empty if the world records no timeline."""
    places = (place for place, call in enumerate(report.collectives) if call.operation not in MESSAGES)
    return [
        (place, passage)
        for place, passage in zip(places, report.timeline, strict=False)
        if passage.collective.operation in REDUCTIONS and elements(passage.collective) >= least
    ]


def _since(hooks: Sequence[tuple[int, int]], launch: Launch) -> str:
    """The hook after which a collective was launched, in words."""
    final = [index for index, launched in hooks if launched <= launch[0]]
    return f"once {parameter_name(final[-1])}.grad is final" if final else "before any gradient is final"
