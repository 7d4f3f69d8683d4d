"""The power of a bound: a missing, doubled or mis-scaled contribution must certainly fall outside it."""

from collections.abc import Callable
from fractions import Fraction

from lockstep.oracle.bounds import Enclosure, Numbers
from lockstep.oracle.rounding import exact, round_to_nearest

Rule = Callable[[Numbers], Enclosure]


def would_notice(rule: Rule, terms: Numbers, faulty: Numbers) -> bool:
    """True if every computation on the ``faulty`` terms falls outside the enclosure for the right ones.

    It does where the two enclosures are disjoint; where they meet, the fault may pass. For a sum over N ranks that all
    contribute x, one of them missing, this is |x| > (N - 1) u N |x| + (N - 1) u (N - 1) |x|, or (N - 1)(2 N - 1) u < 1:
    N <= 12 in bfloat16, 32 in float16, 2897 in float32.
    """
    return rule(terms).disjoint(rule(faulty))


def would_notice_any(rule: Rule, terms: Numbers) -> bool:
    """True if every single missing and every single doubled contribution would certainly fall outside."""
    ranks = range(len(terms))
    return all(would_notice(rule, terms, fault(terms, rank)) for rank in ranks for fault in (missing, doubled))


def missing(terms: Numbers, rank: int) -> list[Fraction]:
    """The terms with one contribution left out: zero in its place, which allows as much rounding as leaving it out."""
    return [Fraction(0) if r == rank else exact(x) for r, x in enumerate(terms)]


def doubled(terms: Numbers, rank: int) -> list[Fraction]:
    """The terms with one contribution added once more."""
    return [exact(x) for x in terms] + [exact(terms[rank])]


def rescaled(terms: Numbers, rank: int, factor: Fraction | float, form: str) -> list[Fraction]:
    """The terms with one contribution multiplied by ``factor`` and rounded to the format.

    A wrong scale of the whole sum needs no such list: ``disjoint`` compares the enclosures of the two rules.
    """
    wrong = exact(round_to_nearest(exact(terms[rank]) * exact(factor), form))
    return [wrong if r == rank else exact(x) for r, x in enumerate(terms)]
