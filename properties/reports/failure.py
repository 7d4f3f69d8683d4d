"""The report of a failure, for readers who know data-parallel training and not Lockstep."""

import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
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
from lockstep.properties.naming import enumerated, model_words
from lockstep.properties.reports import notes, otherwise, real_models
from lockstep.properties.reports.facts import facts, shows_broadcasts
from lockstep.properties.reports.missing import missing
from lockstep.properties.reports.opening import opening
from lockstep.properties.reports.origin import explain
from lockstep.properties.reports.paragraphs import command_entry, entry, wrapped
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
    """The data of a failure that a law's test files, see `properties.verdict`.

    ``cause``: the errors of the first construction if ranks raise there; else the core of the program; else the law and
    the program. For a real model it is the run. ``plain``: true if the program contains nothing but the cause; for a
    real model, if the first wrong value comes before the first step. ``size``: the length of the program's text.
    ``diagnosis``: the fields of `properties.reports.facts.Facts`.
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
        "diagnosis": asdict(facts(diagnosis)),
    }


def _raised_at_first(broken: LawBroken) -> str:
    """The errors of ranks in the first construction, for which no event is the reason; empty if there are none."""
    errors = list(to_blame(broken.outcome).values())
    if any(place_of(error.notes) != -1 for error in errors):
        return ""
    return "; ".join(dict.fromkeys(alike(error.message) for error in errors))


def also_broken(laws: Sequence[str]) -> str:
    """The end of a report, which names the other laws that its program breaks; empty if there are none."""
    if not laws:
        return ""
    told = [f'"{law}"' for law in laws[:ALSO]] + ([f"{len(laws) - ALSO} more"] if len(laws) > ALSO else [])
    return "\n" + "\n".join(entry("Also", f"the same program breaks {enumerated(told)}."))


def report(law: Law, trial: Trial, diagnosis: Diagnosis) -> str:
    """The whole report of a failure, with the command that shows it again. Writes the script, if there is one."""
    return _told(law, trial, diagnosis)[0]


def _told(law: Law, trial: Trial, diagnosis: Diagnosis) -> tuple[str, Path | None]:
    """The report, and the path of its script or None. A program with a core fails without the law's conditions too."""
    broken, scenario, least, script = diagnosis.broken, diagnosis.broken.scenario, diagnosis.core, None
    if isinstance(scenario, Exercise):
        again = entry(scenario.called.capitalize(), repr(scenario))
    elif isinstance(scenario, Scenario):
        command, script = _script(law, trial, broken)
        silent = entry("Note", IN_NO_VALUE) if script is not None and _in_no_value(broken) else []
        again = [*command_entry("See it", command), *silent, *entry("Scenario", repr(scenario))]
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
    shown = picture(scenario, diagnosis.recorded, scenario.roles, whole=shows_broadcasts(diagnosis))
    lacking = missing(diagnosis)
    words += [f"    {line}" for line in [*shown, *lacking] or ["nothing that could be recorded"]]
    origin = _origin(diagnosis)
    words += ["", *origin] if origin else []
    if not diagnosis.always:
        chance = "The program does not fail every time, so something in it depends on timing or chance."
        words += ["", *entry("Seen", f"in {failure.seen[0]} of {failure.seen[1]} runs. {chance}")]
    words += ["", *entry("Elsewhere", failure.elsewhere)] if failure.elsewhere else []
    return words + notes.on_claims(law, trial, scenario, diagnosis)


def _events(diagnosis: Diagnosis, scenario: Scenario) -> Iterator[str]:
    """The events by place, each in one line or more. Repetitions are shown once, with their number."""
    told = []
    for place in range(len(scenario.program)):
        before = otherwise.right_before(diagnosis.broken.choices, place)
        told.append((before, event_words(scenario, place, diagnosis.expected)))
    for begin, length, times in repeats(told):
        for place, (before, (first, *rest)) in enumerate(told[begin : begin + length], begin):
            yield from before
            for line in (f"{place:4}  {first}", *(" " * 6 + each.replace("backward:", " " * 9) for each in rest)):
                yield from wrapped(line, " " * 8)
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
    """Its module or file, relative to here, because two folders may have files and classes of the same name.

    If that is too long for a file name: its end, and a number that stands for the rest.
    """
    place = from_here(implementation.rpartition(":")[0].removesuffix(".py"))
    return place if len(place) <= LONGEST else f"{zlib.crc32(place.encode()):x} {place[-LONGEST:]}"


def report_name(trial: Trial) -> str:
    """The beginning of the names of files that tell of an implementation."""
    implementation = trial.implementation
    return file_name(_origin_of(implementation.name), implementation.short)


def script_name(law: Law, trial: Trial, verdict: str) -> str:
    """The name of a failure's script. It names law, world and implementation, so that no other script overwrites it."""
    implementation, world = trial.implementation, trial.world.name
    elsewhere = [] if world == "sim" else [f"on {world}"]
    place = _origin_of(implementation.name)
    return file_name(place, implementation.short, law.number, sentence(law), verdict, *elsewhere)


def _in_no_value(broken: LawBroken) -> bool:
    """True if no number shows the defect: it is in the messages, their times or sizes, or in a dtype or shape."""
    if broken.difference is None:
        return isinstance(broken, SilentlyWrong | Wasteful)
    return broken.difference.kinds is not None


def _script(law: Law, trial: Trial, broken: LawBroken) -> tuple[str, Path | None]:
    """Write the script. Gives the command that runs it and its path, or the reason why it could not be written."""
    name, folder = script_name(law, trial, broken.verdict), trial.report or FOLDER
    conditions = Conditions.of(of_the_ranks(broken.choices))
    try:
        path = write_script(trial.implementation, broken.scenario, broken.headline, folder, name, conditions)
    except OSError as error:
        return f"the script could not be written: {error}", None
    torchrun = Path(sys.executable).with_name("torchrun")  # of this environment, which need not be on the PATH
    command = from_here(torchrun) if torchrun.exists() else f"{sys.executable} -m torch.distributed.run"
    return f"{command} --nproc-per-node={broken.scenario.world_size + broken.scenario.outsiders} {path}", path
