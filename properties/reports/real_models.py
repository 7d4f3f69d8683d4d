"""The report of a failure on a real model: the run in words, the collectives, and the command to repeat it."""

import shlex
import sys
from pathlib import Path
from typing import Any

from lockstep.home import HOME, IS_CLONE
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.state import Inside
from lockstep.properties.difference import Difference
from lockstep.properties.law import Law
from lockstep.properties.models import data
from lockstep.properties.models.scenario import EXACT, SPARSE, Freezing, Microbatch, ModelScenario
from lockstep.properties.reports import notes
from lockstep.properties.reports.opening import opening
from lockstep.properties.reports.paragraphs import entry, wrapped
from lockstep.properties.reports.whereabouts import from_here
from lockstep.properties.searching.search import Failure
from lockstep.properties.trial import Trial

MOST_LINES = 12
ASSUMED = (
    "the computation of each rank has the same bits as in plain torch. If your class scales the loss or compiles "
    'forward, claim "plain_bits": False.'
)
TOLD = {
    "Finish": "finish the synchronization",
    "Step": "step",
    "ZeroGrad": "gradients become None",
    "SaveAndLoad": "each rank saves its state, builds everything again with other values, and loads the state",
    "Evaluation": "evaluate one more batch: in evaluation mode, without autograd",
}


def story(law: Law, trial: Trial, failure: Failure) -> list[str]:
    """The report of a failure on a real model, line by line."""
    broken = failure.broken
    scenario: Any = broken.scenario
    words = opening(law, trial, failure, ASSUMED if _may_be_rounded(scenario, broken.difference) else "")
    told = f"The smallest run that shows it: {model_words(scenario)}."
    words += ["", *wrapped(told, "    "), *program_words(scenario)]
    words += ["", "What went over the wire, and on which ranks:"]
    words += wire(broken.outcome) or ["    nothing"]
    if failure.seen[0] < failure.seen[1]:
        words += entry("Seen", f"in {failure.seen[0]} of {failure.seen[1]} runs.")
    words += ["", *entry("Elsewhere", failure.elsewhere)] if failure.elsewhere else [""]
    return words + notes.on_claims(law, trial, scenario)


def _may_be_rounded(scenario: ModelScenario, difference: Difference | None) -> bool:
    """True if half of the digits of an inexact value are right, so that it may only be rounded differently."""
    if difference is None or difference.actual is None or difference.kinds or scenario.model in EXACT:
        return False
    at, wanted = difference.element, difference.expected
    if isinstance(wanted, Inside):
        ends = [float(wanted.low[at]), float(wanted.high[at])]
    elif difference.quantity in ("input", "output") and wanted is not None:
        ends = [float(wanted[at])]
    else:
        return False  # a comparison between ranks
    digits = FORMATS["bfloat16" if scenario.autocast else scenario.dtype].precision
    off = min(abs(float(difference.actual[at]) - end) for end in ends)
    return off <= max(map(abs, ends)) * 2.0 ** -(digits // 2)


def again(trial: Trial, scenario: Any) -> list[str]:
    """The command that repeats it."""
    world = "gloo" if trial.world.name == "torchrun" else trial.world.name
    asked = ["--world", world, *(["--device", "cuda"] if world == "gloo" and trial.world.device == "cuda" else [])]
    sharing = getattr(trial.world, "ranks_per_gpu", 1)
    asked += ["--ranks-per-gpu", str(sharing)] if sharing > 1 else []
    asked += [*["--any-order"][: trial.any_order], "--impl", trial.implementation.name]
    folder = [] if str(Path.cwd()) == HOME or not IS_CLONE else [f"PYTHONPATH={shlex.quote(HOME)}"]
    command = [
        *folder,
        shlex.quote(from_here(sys.executable)),
        "-m lockstep.properties.models.again",
        shlex.join(asked),
    ]
    return [f'See it:    {" ".join(command)} "{scenario!r}"', f"Scenario:  {scenario!r}"]


def model_words(scenario: ModelScenario) -> str:
    """The model, its options and its ranks in words."""
    model = scenario.yours or f"{scenario.model}, {scenario.dtype}"
    words = [f"{model}, on {scenario.world_size} rank{'s'[: scenario.world_size - 1]}"]
    words += ["its block is used twice"] if scenario.twice else []
    words += [f"activations recomputed ({scenario.checkpoint})"] if scenario.checkpoint else []
    until = f" until step {scenario.thaws}" if scenario.thaws else ""
    words += [f"its layer {scenario.frozen!r} is frozen{until}"] if scenario.frozen else []
    words += ["called with keywords, its outputs in a mapping"] if scenario.named else []
    words += ["its outputs in a class of its own"] if scenario.classed else []
    words += ["outputs of modules changed in place"] if scenario.in_place else []
    words += ["in batches of several sizes"] if scenario.uneven else []
    words += ["its inputs require gradients"] if scenario.through else []
    words += [f"saved and loaded after step {scenario.saved - 1}"] if scenario.saved else []
    words += [f"evaluated from step {scenario.evaluated - 1} on"] if scenario.evaluated else []
    words += ["forward under torch.autocast"] if scenario.autocast else []
    words += [f"bucket cap {scenario.bucket_cap} bytes"] if scenario.bucket_cap is not None else []
    return ", ".join([*words, f"stepped by {scenario.optimizer}"])


def program_words(scenario: ModelScenario) -> list[str]:
    """The events, one line each."""
    lines, batch = [], 0
    for place, event in enumerate(scenario.program):
        words = TOLD.get(type(event).__name__, "")
        if isinstance(event, Freezing):
            words = f"layer {scenario.frozen!r} is {'trained from here on' if event.trained else 'frozen'}"
        if isinstance(event, Microbatch):
            words = f"micro-batch {batch}: forward and backward{'' if event.synchronize else ', inside no_sync'}"
            if scenario.heads:
                heads = {1: "the first", 2: "the second", 3: "both"}
                used = [f"rank {rank} {heads[scenario.used(rank, batch)]}" for rank in range(scenario.world_size)]
                words += f"; of two outputs the loss takes, on {', on '.join(used)}"
            if scenario.model == SPARSE:
                rows = [data.batch(scenario, rank, batch)["inputs"].tolist() for rank in range(scenario.world_size)]
                words += "".join(
                    f"; rank {rank} looks up {', '.join(map(str, mine))}" for rank, mine in enumerate(rows)
                )
            if scenario.uneven:
                sizes = [data.size(scenario, rank, batch)[0] for rank in range(scenario.world_size)]
                words += f"; samples: {', '.join(f'rank {rank} has {rows}' for rank, rows in enumerate(sizes))}"
            batch += 1
        lines.append(f"{place:4}  {words}")
    return lines


def wire(outcome: Any) -> list[str]:
    """The collectives in order, with the ranks that issued them if not all did."""
    lines = []
    timelines = [[str(call) for call in report.collectives] for report in outcome]
    longest = max(map(len, timelines))
    for number in range(longest):
        calls: dict[str, list[int]] = {}
        for rank, timeline in enumerate(timelines):
            if number < len(timeline):
                calls.setdefault(timeline[number], []).append(rank)
        for call, ranks in calls.items():
            alone = "" if len(ranks) == len(timelines) else f"   only on rank {', '.join(map(str, ranks))}"
            lines.append(f"{number + 1:4}. {call}{alone}")
    hidden = len(lines) - MOST_LINES
    return lines if hidden <= 0 else [f"      {hidden} before these", *lines[-MOST_LINES:]]
