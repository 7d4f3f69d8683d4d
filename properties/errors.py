"""Judge errors on ranks: no error, a refusal, or a verdict."""

import re
from collections.abc import Sequence

from lockstep.oracle.events import Event, Step
from lockstep.oracle.program import Scenario
from lockstep.properties.exercise import Exercise
from lockstep.properties.failure_place import construction_of, place_of
from lockstep.properties.members import misnames_a_rank
from lockstep.properties.verdict import Crashes, Hangs, NotRunnableHere, Refused
from lockstep.worlds.contract import Outcome, RankError, errors_of, to_blame

# After construction only `REFUSALS` count as a refusal. In the constructor any error counts that a `raise` statement
# raises. An index out of range, or too few values to unpack, is a fault that all ranks share. Refusals by torch's C++
# code are of the types in `OF_TORCH`, whose key is true during construction.
REFUSALS = ("ValueError", "NotImplementedError")
OF_TORCH = {True: ("RuntimeError", "NotImplementedError"), False: ("NotImplementedError",)}


def judge_errors(scenario: Scenario | Exercise, outcome: Outcome) -> None:
    """Do nothing if no rank failed; else raise NotRunnableHere, Refused, Hangs or Crashes."""
    errors = errors_of(outcome)
    if not errors:
        return
    kinds = {error.kind for error in errors.values()}
    if "not runnable" in kinds:
        said = next(error.message for error in errors.values() if error.kind == "not runnable")
        raise NotRunnableHere(said, outcome)
    messages = {alike(error.message) for error in errors.values()}  # messages may contain the rank
    if kinds == {"raised"} and len(errors) == len(outcome) and len(messages) == 1:
        message = errors[0].message
        places = [place_of(error.notes) for error in errors.values()]
        constructing = all(place == -1 for place in places)
        harmless = _harmless(scenario.program, max(-1 if place is None else place for place in places), message)
        name, _, explanation = message.partition(":")
        on_purpose = all(error.deliberate for error in errors.values()) and (constructing or name in REFUSALS)
        on_purpose = on_purpose and not misnames_a_rank(scenario, explanation)
        if explanation.strip() and harmless and (on_purpose or name in OF_TORCH[constructing]):
            asked = construction_of(errors[0].notes)
            raise Refused(f"{message.rstrip().removesuffix('.')}, {asked}" if asked else message, outcome)
    told = to_blame(outcome)
    if "mismatch" in kinds:
        disagreement = next(error.message for error in errors.values() if error.kind == "mismatch")
        raise Crashes(_sentence(disagreement), scenario, outcome)
    words = "; ".join(f"rank {rank} {_words(error)}" for rank, error in told.items())
    if len(told) == len(outcome) > 1 and len({_words(error) for error in told.values()}) == 1:
        words = f"every rank: {_words(told[0])}"
    if "deadlock" in kinds:
        raise Hangs(_sentence(f"deadlock: {told[min(told)].message}"), scenario, outcome)
    if "timeout" in kinds:
        raise Hangs(_sentence(words), scenario, outcome)
    raise Crashes(_sentence(words), scenario, outcome)


def _harmless(program: Sequence[Event], place: int, message: str) -> bool:
    """True if no training is lost, because no event up to that place is a step.

    A refusal after a step is also harmless if this form of the event, for example a type of norm, was not used before
    and the error is a NotImplementedError.
    """
    if Step not in map(type, program[: place + 1]):
        return True
    if not message.startswith("NotImplementedError"):
        return False
    forms = ("norm_type", "set_to_none")
    kinds = [(type(event), *(getattr(event, form, None) for form in forms)) for event in program[: place + 1]]
    return kinds[-1] not in kinds[:-1]


def alike(message: str) -> str:
    """An error's message without numbers and addresses, which may differ between equal errors."""
    return re.sub(r"0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:e[+-]\d+)?", "#", message)


def _words(error: RankError) -> str:
    message = error.message.rstrip().removesuffix(".") if error.notes else error.message
    # A message with only the type's name, for example from a bare assert.
    if error.kind == "raised" and message.rstrip().endswith(":"):
        message = f"{message.rstrip().removesuffix(':')}: {_line(error.details)}".removesuffix(": ")
    return " ".join(("raised" if error.kind == "raised" else "", message, *error.notes)).strip()


def _line(details: str) -> str:
    """The line of code that raised an error, from its traceback; empty if it is not shown."""
    shown = [line.strip() for line in details.splitlines() if line.startswith("    ")]
    return next((line for line in reversed(shown) if line.strip("^~ ")), "")


def _sentence(words: str) -> str:
    return words if words.endswith((".", "!", "?")) else words + "."
