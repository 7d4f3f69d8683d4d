"""The table of claims says of each what a user, the check and the probing need to know."""

from dataclasses import Field, fields
from typing import Any

import pytest

from lockstep.properties.claim import Shape, told, wrong_value
from lockstep.properties.claims import Claims, read_claims
from lockstep.properties.implementations import Implementation
from lockstep.properties.running.probing import one_more

TABLE = fields(Claims)
WORDS = 25  # of a sentence that is understood at first reading


@pytest.mark.parametrize("claim", TABLE, ids=lambda claim: claim.name)
def test_a_claim_is_told_in_one_plain_sentence_and_has_its_default_among_its_values(claim: "Field[Any]") -> None:
    declared = told(claim)
    assert declared.says[0].isupper() or declared.says.startswith("`")
    assert declared.says.endswith(".")
    assert len(declared.says.split()) <= WORDS
    assert wrong_value(claim, claim.default) == ""
    assert declared.some or not declared.choices or claim.default in declared.choices


@pytest.mark.parametrize("claim", TABLE, ids=lambda claim: claim.name)
def test_no_claim_takes_what_is_none_of_its_values(claim: "Field[Any]") -> None:
    for value in ("never heard of", ["a list"], 2.5):
        assert wrong_value(claim, value).startswith(f"{claim.name} is ")


def described_as(declared: dict[str, Any] | None, **more: Any) -> Implementation:
    """An implementation that declares this, with the claims that follow from it and from its shape."""
    shape = Shape(has_no_sync=False, takes_cap=False, **more)
    undeclared = tuple(each.name for each in TABLE if each.name not in (declared or ()))
    return Implementation("my:DDP", read_claims(declared, shape), undeclared=undeclared, shape=shape)


def test_what_is_probed_is_one_claim_more_of_which_nothing_is_said() -> None:
    bare = described_as(None)
    tried = list(one_more(bare))
    assert len(tried) == len({*tried}) > 30
    for claims in tried:
        (name,) = (each.name for each in TABLE if getattr(claims, each.name) != getattr(bare.claims, each.name))
        assert getattr(claims, name) in told(next(each for each in TABLE if each.name == name)).probed


def test_to_decline_one_claim_ends_the_probing_of_that_alone() -> None:
    """So does to claim one: of all others nothing has been said."""
    everything = len(list(one_more(described_as(None))))
    assert len(list(one_more(described_as({"hook_order": False})))) == everything
    assert len(list(one_more(described_as({"tied_parameters": False})))) == everything - 1
    assert len(list(one_more(described_as({"unused": "zero"})))) == everything - 2


def test_what_cannot_be_claimed_of_such_a_class_is_not_probed() -> None:
    sharded = described_as({"stage": 2}, makes_optimizer=True)
    assert not any(claims.optimizer_before or claims.replaced_parameters for claims in one_more(sharded))
