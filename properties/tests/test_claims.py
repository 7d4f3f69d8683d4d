"""The table of claims says of each what a user, the check and the probing need to know."""

from dataclasses import Field, fields, replace
from typing import Any

import pytest

from lockstep.properties.claim import told, wrong_value
from lockstep.properties.claims import Claims, read_claims
from lockstep.properties.running.probing import ONE_MORE

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


def test_what_is_probed_is_one_claim_more_than_nothing() -> None:
    bare = read_claims(None, has_no_sync=False, takes_cap=False)
    for more in ONE_MORE:
        ((name, value),) = more.items()
        assert value not in (None, False, ())
        assert getattr(replace(bare, **more), name) == value
    assert len(ONE_MORE) == len({repr(more) for more in ONE_MORE})
