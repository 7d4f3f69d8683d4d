"""The report of a failure, for somebody who knows data-parallel training and has never heard of Hypothesis."""

import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lockstep.oracle.program import Scenario
from lockstep.properties.conditions import Conditions
from lockstep.properties.diagnosing.diagnosis import Diagnosis
from lockstep.properties.errors import alike
from lockstep.properties.events import event_words
from lockstep.properties.exercise import Exercise
from lockstep.properties.failure_place import place_of
from lockstep.properties.law import Law, sentence
from lockstep.properties.naming import model_words
from lockstep.properties.reports import notes, otherwise, real_models
from lockstep.properties.reports.opening import opening
from lockstep.properties.reports.origin import explain
from lockstep.properties.reports.paragraphs import entry, wrapped
from lockstep.properties.reports.picture import picture
from lockstep.properties.reports.repeats import repeats
from lockstep.properties.reports.whereabouts import from_here
from lockstep.properties.script.whole import file_name, write_script
from lockstep.properties.trial import Trial, of_the_ranks
from lockstep.properties.verdict import LawBroken, SilentlyWrong, Wasteful
from lockstep.worlds.contract import to_blame

FOLDER = Path("lockstep-report")  # for scripts, where a trial names no other
IN_NO_VALUE = (
    "the script shows the program, but every value that it prints is right: the defect is in the collectives, or in a "
    "dtype or shape."
)
ALSO = 4  # laws that a report names beside its own
LONGEST = 60  # characters of an implementation's module or file in the name of its script


def filed_failure(law: Law, trial: Trial, diagnosis: Diagnosis) -> dict[str, Any]:
    """The data of a failure that a law's test files: its verdict, report, and script,
    if it has one; its cause, which is its core or, without one, law and program, or what was raised before the program
    began; whether it is plain, with nothing in its program but the cause; and how long its program is.

    Of a real model the run is the cause, and what is wrong before the first step is plain.
    """
    broken, scenario, least = diagnosis.broken, diagnosis.broken.scenario, diagnosis.core
    real = not isinstance(scenario, (Scenario, Exercise))
    whole = repr(scenario) if real else f"{law.name} {scenario!r}"
    cause = _raised_at_first(broken) or (whole if least is None else repr(least))
    begun = broken.difference is not None and broken.difference.place >= 0
    plain = not begun if real else least is None or (least == scenario and not otherwise.no_reason(broken.choices))
    told, script = _told(law, trial, diagnosis)
    return {
        "verdict": diagnosis.failure.verdict,
        "report": told,
        "script": "" if script is None else str(script),
        "scenario": repr(scenario),
        "cause": cause,
        "plain": plain,
        "size": len(repr(scenario)),
    }


def _raised_at_first(broken: LawBroken) -> str:
    """The errors of ranks in the first construction, for which no event is the reason; empty if there are none."""
    errors = list(to_blame(broken.outcome).values())
    if any(place_of(error.notes) != -1 for error in errors):
        return ""
    return "; ".join(dict.fromkeys(alike(error.message) for error in errors))


def also_broken(laws: Sequence[str]) -> str:
    """The end of a report: the other laws that its program breaks, by numbers and sentences; empty without any."""
    if not laws:
        return ""
    more = f"; and {len(laws) - ALSO} more" if len(laws) > ALSO else ""
    return "\n" + "\n".join(entry("Also", f"the same program breaks {'; '.join(laws[:ALSO])}{more}."))


def report(law: Law, trial: Trial, diagnosis: Diagnosis) -> str:
    """Everything that is known of a failure, and how to see it again. Writes its script, if there is one."""
    return _told(law, trial, diagnosis)[0]


def _told(law: Law, trial: Trial, diagnosis: Diagnosis) -> tuple[str, Path | None]:
    """The report, and the script that it names, if it has one. A program that has a core goes wrong also when it is run
    as usual.
    """
    broken, scenario, least, script = diagnosis.broken, diagnosis.broken.scenario, diagnosis.core, None
    if isinstance(scenario, Exercise):
        again = entry(scenario.called.capitalize(), repr(scenario))
    elif isinstance(scenario, Scenario):
        command, script = _script(law, trial, broken)
        silent = entry("Note", IN_NO_VALUE) if script is not None and _in_no_value(broken) else []
        again = [*entry("See it", command), *silent, *entry("Scenario", repr(scenario))]
    else:
        again = real_models.again(trial, scenario)
    usual = otherwise.no_reason(broken.choices) if least is not None else []
    if least not in (None, scenario):
        usual += entry("Alone", f"this part of the program fails in the same way by itself: {least!r}")
    return "\n".join([*story(law, trial, diagnosis), *usual, *again]), script


def story(law: Law, trial: Trial, diagnosis: Diagnosis) -> list[str]:
    """The story of a failure, line by line."""
    failure, scenario = diagnosis.failure, diagnosis.broken.scenario
    if not isinstance(scenario, (Scenario, Exercise)):
        return real_models.story(law, trial, failure)
    words = opening(law, trial, failure)
    if isinstance(scenario, Exercise):
        words += ["", *wrapped(f"The smallest {scenario.called} that shows it: {scenario.words()}.", "    ")]
        shown = scenario.shown(diagnosis.broken.outcome)
        words += ["", *shown] if shown else []
        words += ["", *entry("Elsewhere", failure.elsewhere)] if failure.elsewhere else []
        return words
    how = otherwise.in_words(diagnosis.broken.choices)
    words += ["", *wrapped(f"The smallest program that shows it: {model_words(scenario)}{how}.", "    ")]
    words += _events(diagnosis, scenario)
    words += notes.on_the_program(trial, diagnosis)
    words += ["", "What went over the wire:"]
    difference = diagnosis.broken.difference
    broadcast = difference is not None and (difference.place < 0 or difference.quantity == "buffer")
    shown = picture(scenario, diagnosis.recorded, scenario.roles, whole=broadcast)
    words += [f"    {line}" for line in shown or ["nothing that could be recorded"]]
    origin = _origin(diagnosis)
    words += ["", *origin] if origin else []
    if not diagnosis.always:
        chance = "The program does not fail every time, so something in it depends on timing or chance."
        words += ["", *entry("Seen", f"in {failure.seen[0]} of {failure.seen[1]} runs. {chance}")]
    words += ["", *entry("Elsewhere", failure.elsewhere)] if failure.elsewhere else []
    return words + notes.on_claims(law, trial, scenario, diagnosis)


def _events(diagnosis: Diagnosis, scenario: Scenario) -> Iterator[str]:
    """The events by their places, each in one line or more; what comes over and over, once."""
    told = []
    for place in range(len(scenario.program)):
        before = otherwise.right_before(diagnosis.broken.choices, place)
        told.append((before, event_words(scenario, place, diagnosis.expected)))
    for begin, length, times in repeats(told):
        for place, (before, (first, *rest)) in enumerate(told[begin : begin + length], begin):
            yield from before
            yield f"{place:4}  {first}"
            yield from (" " * 6 + line.replace("backward:", " " * 9) for line in rest)
        if times > 1:
            those = f"events {begin} to {begin + length - 1}" if length > 1 else f"event {begin}"
            yield f"{begin + length * times - 1:4}  up to here: {those}, {times - 1} times more"


def _origin(diagnosis: Diagnosis) -> list[str]:
    """The origin of the first wrong value, as far as it is known."""
    difference, words = diagnosis.broken.difference, []
    if difference is not None and diagnosis.shares:
        words += entry("Came from", explain(diagnosis.broken, difference, diagnosis.shares))
    return words + (entry("A guess", f"{diagnosis.guess}.") if diagnosis.guess is not None else [])


def _origin_of(implementation: str) -> str:
    """Its module or file, from here: files of one name, in two folders, may have classes of one name.

    Where that is too long for the name of a file, the end of it, and a number that stands for the rest.
    """
    place = from_here(implementation.rpartition(":")[0].removesuffix(".py"))
    return place if len(place) <= LONGEST else f"{zlib.crc32(place.encode()):x} {place[-LONGEST:]}"


def report_name(trial: Trial) -> str:
    """The beginning of the names of files that tell of an implementation."""
    implementation = trial.implementation
    return file_name(_origin_of(implementation.name), implementation.short)


def script_name(law: Law, trial: Trial, verdict: str) -> str:
    """The name of a failure's script, of no other law, world or implementation: what a report says to run must not be
    overwritten.
    """
    implementation, world = trial.implementation, trial.world.name
    elsewhere = [] if world == "sim" else [f"on {world}"]
    place = _origin_of(implementation.name)
    return file_name(place, implementation.short, law.number, sentence(law), verdict, *elsewhere)


def _in_no_value(broken: LawBroken) -> bool:
    """True if numbers do not show it: it is in what is sent, when, and how much, or in a dtype or shape."""
    if broken.difference is None:
        return isinstance(broken, SilentlyWrong | Wasteful)
    return broken.difference.kinds is not None


def _script(law: Law, trial: Trial, broken: LawBroken) -> tuple[str, Path | None]:
    """Writes it. The command that runs it, and where it is; why there is none where it could not be written."""
    name, folder = script_name(law, trial, broken.verdict), trial.report or FOLDER
    conditions = Conditions.of(of_the_ranks(broken.choices))
    try:
        path = write_script(trial.implementation, broken.scenario, broken.headline, folder, name, conditions)
    except OSError as error:
        return f"the script could not be written: {error}", None
    torchrun = Path(sys.executable).with_name("torchrun")  # of this environment, which need not be on the PATH
    command = from_here(torchrun) if torchrun.exists() else f"{sys.executable} -m torch.distributed.run"
    return f"{command} --nproc-per-node={broken.scenario.world_size + broken.scenario.outsiders} {path}", path
