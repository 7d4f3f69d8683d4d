"""A defect told to someone who does not know its law: `lockstep check --explain D1`."""

import inspect
import textwrap
from collections.abc import Iterator

from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_text
from lockstep.properties.law import as_sentence
from lockstep.properties.reports.facts import Facts
from lockstep.properties.reports.paragraphs import width, wrapped
from lockstep.properties.results.advice import advice
from lockstep.properties.results.document import Defect

READING = (
    "Read the program from top to bottom. Each numbered line is an event, and every rank takes part in it.",
    '"rank 0 reaches a, b" is the order in which backward reaches the parameters, and in which hooks fire.',
    'The part "What went over the wire" has one table for each collective, in the order of the calls. '
    "A row is one rank's buffer. The elements in one column are reduced together.",
    '"a[0] = 7" says that the number 7 is the gradient of element 0 of parameter a. '
    "Each rank, micro-batch, parameter and element has a number of its own, so a value shows where it comes from.",
    '"Came from" writes the wrong value as a sum of such gradients, beside the sum that is right. '
    "The difference between the two sums is the bug.",
)
# By the first words of a verdict: how to look for the cause.
LOOK = {
    "hangs": "Find the first collective that one rank calls and another does not. Usual reasons: a collective inside "
    "an `if` that depends on the rank's own data, and a counter that waits for a gradient which never comes.",
    "crashes": "Begin at the traceback in the report. Then look at the event before it: the state that it leaves "
    "behind is often the cause.",
    "wasteful": "Compare the collectives of the report with those that the law allows. Look for data that is sent or "
    "held twice, and for waits that come too early.",
    "": "Find the first column on the wire in which you did not expect those values. Then look for the code that put "
    "them there: the packing of buckets, the order of the calls, the divisor, or a buffer that is not reset.",
}


def explained(name: str, defect: Defect) -> Iterator[str]:
    """The lines. ``name``: of the target that has the defect."""
    yield from wrapped(f"{defect.id} of {name}: {defect.verdict}", "    ")
    yield ""
    yield "The law that is broken"
    yield from _indented(defect.law)
    yield from (f"    {line}".rstrip() for line in inspect.cleandoc(_says(defect.law)).splitlines())
    if others := [law for law in defect.laws if law != defect.law]:
        yield ""
        yield "The same defect also breaks"
        for law in others:
            yield from _indented(law)
    yield ""
    yield "When it shows"
    yield from _indented(f"Programs that show it have: {defect.cause}.")
    yield ""
    if defect.scenario.startswith(f"{Scenario.__name__}("):
        yield "How to read the report below"
        for sentence in READING:
            yield from _indented(sentence)
        yield ""
    yield "What to change"
    for sentence in (*_facts(defect.diagnosis), *advice(defect.needs)):
        yield from _indented(sentence)
    yield from _indented(next(words for verdict, words in LOOK.items() if defect.verdict.startswith(verdict)))
    if defect.claim:
        yield from _indented(
            f"If your class does not mean to support this, decline the claim: `lockstep claims {defect.claim}` shows "
            "its values."
        )
    if defect.script:
        yield from _indented(f"To debug, run the script, which needs only torch and your class: {defect.script}")
    yield from _indented(f"Afterwards check the law again: lockstep check {name} -k {defect.law.split()[0]}")
    yield ""
    yield "The report"
    yield ""
    yield defect.report


def _facts(told: Facts) -> Iterator[str]:
    """The sentences on what to change that follow from the first report."""
    if told.clash:
        yield f"In collective {told.clash}, ranks send gradients of different parameters: {'; '.join(told.sends)}."
        yield "Change the code so that every rank passes the same parameter to the same call."
    if told.missing:
        yield f"{told.missing} Find the call that should, and the condition under which it is left out."
    if told.where:
        yield f"These lines of code are concerned: {'; '.join(told.where)}."
    if told.guess:
        yield f"The wrong values are exactly these: {told.guess}."


def _says(law: str) -> str:
    """The docstring of a law, by its number and sentence; empty if this Lockstep has no such law."""
    return next((says for number, name, says in every_text() if f"{number} {as_sentence(name)}" == law), "")


def _indented(text: str) -> list[str]:
    """A paragraph under a heading."""
    longest = min(100, width())
    return textwrap.wrap(text, longest, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
