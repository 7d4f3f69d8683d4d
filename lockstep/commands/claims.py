"""`lockstep claims`: every claim in a line, or one of them explained."""

import argparse
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import Field, fields, replace
from difflib import get_close_matches
from typing import Any

from lockstep.properties.catalogue import every_law
from lockstep.properties.claim import told as declared
from lockstep.properties.claims import Claims
from lockstep.properties.law import concerns, sentence
from lockstep.properties.reports.paragraphs import fit_the_terminal, width

HOW = (
    "A class says what it claims in an attribute, such as",
    '    claims = {"unused": "untouched", "sixteen_bits": True}',
)
LEFT_OUT = "A claim that the class leaves out has the value in brackets. Some follow from its methods and arguments."


def main(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Print the claims."""
    parser.add_argument("claim", nargs="?", help="the name of a claim (default: list all claims)")
    asked = parser.parse_args(arguments)
    fit_the_terminal()
    known = {each.name: each for each in fields(Claims)}
    if asked.claim is None:
        print("\n".join([*HOW, *textwrap.wrap(LEFT_OUT, width()), ""]))
        for each in known.values():
            told = textwrap.wrap(f"{declared(each).says} [{each.default!r}]", width() - 25)
            print("\n".join([f"{each.name:24} {told[0]}", *(f"{'':24} {line}" for line in told[1:])]))
        return
    if asked.claim not in known:
        close = get_close_matches(asked.claim, known)
        meant = f"did you mean {' or '.join(close)}?" if close else "`lockstep claims` lists them"
        parser.error(f"{asked.claim}: there is no such claim; {meant}")
    print("\n".join(_explained(known[asked.claim])))


def _explained(claim: "Field[Any]") -> Iterator[str]:
    """One claim: what it promises, its values, and the laws that hang on it."""
    yield from textwrap.wrap(f"{claim.name}: {declared(claim).says}", width())
    yield f"    values      {', '.join(map(repr, _values(claim))) or 'a whole number'}"
    yield f"    by default  {claim.default!r}"
    for told, laws in _laws(claim).items():
        yield from (f"    {told if number == 0 else '':11} {law}" for number, law in enumerate(laws))


def _laws(claim: "Field[Any]") -> dict[str, list[str]]:
    """The laws that are held only where it is claimed, in any of its values, and those that then are held no more."""
    values = _values(claim)
    absent = next((value for value in values if value is None or value is False or value == ()), ...)
    found: dict[str, list[str]] = {"needed by": [], "rules out": []}
    if absent is ...:
        return found
    without = Claims(**{claim.name: absent})
    wider = [claims for value in values if value != absent and (claims := _claiming(without, claim.name, value))]
    for law in every_law().values():
        bare, with_it = concerns(law, without), any(concerns(law, claims) for claims in wider)
        if wider and bare != with_it:
            found["needed by" if with_it else "rules out"].append(f"{law.number} {sentence(law)}")
    return found


def _values(claim: "Field[Any]") -> tuple[Any, ...]:
    """The values of a claim; none of a number. What it may be some of is listed one by one, each in a tuple."""
    known = declared(claim)
    return ((), *((value,) for value in known.choices)) if known.some else known.choices


def _claiming(claims: Claims, name: str, value: Any) -> Claims | None:
    """The claims with one more; None where it goes with others only."""
    try:
        return replace(claims, **{name: value})
    except ValueError:
        return None
