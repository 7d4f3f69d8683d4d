"""The origin of a wrong value, in a sentence."""

from collections.abc import Sequence
from fractions import Fraction

from lockstep.oracle.program import Scenario
from lockstep.properties.diagnosing.shares import Share
from lockstep.properties.difference import Difference
from lockstep.properties.naming import element_name, parameter_name
from lockstep.properties.verdict import LawBroken

MOST_TERMS = 3  # the most contributions that are shown as a sum; of more, only the wrong ones are shown


def explain(broken: LawBroken, difference: Difference, shares: Sequence[Share]) -> str:
    """The shares in a sentence."""
    scenario, roles = broken.scenario, broken.scenario.roles
    gradient = f"{parameter_name(difference.parameter)}.grad{difference.at} on rank {difference.rank}"
    if all(share.actual == share.expected for share in shares):
        return f"each contribution to {gradient} is right if it is the only one; together they are wrong."
    if len(shares) > MOST_TERMS:
        wrong = [share for share in shares if share.actual != share.expected]
        counts = [
            f"{_named(scenario, each, roles)} counts {each.actual} and must count {each.expected}" for each in wrong
        ]
        return f"in {gradient}, {'; '.join(counts)}{'; the rest is right' if len(wrong) < len(shares) else ''}."
    actual = _combination(scenario, roles, [(share, share.actual) for share in shares])
    expected = _combination(scenario, roles, [(share, share.expected) for share in shares])
    return f"{gradient} is {actual}; it must be {expected}."


def _combination(scenario: Scenario, roles: Sequence[int], terms: list[tuple[Share, Fraction]]) -> str:
    words = [
        f"{'' if coefficient == 1 else f'{coefficient} of '}{_named(scenario, share, roles)}"
        for share, coefficient in terms
        if coefficient
    ]
    return " + ".join(words) or "nothing"


def _named(scenario: Scenario, share: Share, roles: Sequence[int]) -> str:
    """A contribution in words: its rank, its element, and its micro-batch if there are several."""
    rank = roles.index(share.sample) if roles else share.sample
    owner = f"rank {rank}'s" if scenario.samples == scenario.world_size else f"sample {share.sample}'s"
    when = f" of micro-batch {share.microbatch}" if len(scenario.microbatches) > 1 else ""
    return f"{owner} {element_name(scenario, share.parameter, share.element)}{when}"
