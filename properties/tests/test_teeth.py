"""The laws have teeth, and bite nobody else: known faults are found by the laws named for them, and odd but correct
twins pass. Which laws, faults and twins there are is read from the packages (`properties.catalogue`). A short run tries
each of them, a nightly one all pairs.
"""

import re
from collections import Counter

import pytest

from lockstep.properties.catalogue import every_fault, every_law, every_twin
from lockstep.properties.implementations import Implementation, described
from lockstep.properties.law import concerns
from lockstep.properties.ranks import description
from lockstep.properties.searching.search import search
from lockstep.properties.searching.witnesses import unwitnessed
from lockstep.properties.tests.idle import IDLE
from lockstep.properties.tests.trials import NIGHTLY
from lockstep.properties.trial import ENDED, Trial
from lockstep.properties.verdict import LawBroken
from lockstep.worlds.contract import World

LAWS = every_law()
FAULTS = {name: described(name, description.describe(name)) for name in every_fault()}
TWINS = {name: described(name, description.describe(name)) for name in every_twin()}
KILLS = [(fault, law) for fault, found in every_fault().items() for law in found.killed_by]
FAULTS_OF_A_LAW = 3
# What is odd may send more than it must: only twins of cost are held to P18.
SPARES = [
    (twin, law)
    for twin in TWINS
    for law in LAWS
    if concerns(LAWS[law], TWINS[twin].claims)
    and (LAWS[law].number != "P18" or twin.startswith("lockstep.impls.twins.cost:"))
]
# All of them take a quarter of an hour: a short run tries every twentieth, and one of each law that has none among
# those; a nightly one all, and harder.
SOME = SPARES[::20]
SOME += {law: (twin, law) for twin, law in SPARES[::-1] if law not in {tried for _, tried in SOME}}.values()
HELD, EXAMPLES_OF_A_TWIN = (SPARES, 20) if NIGHTLY else (SOME, 4)


def foremost() -> list[tuple[str, str]]:
    """Each fault with the law that it names first, and each law with three faults."""
    pairs = [(fault, known.killed_by[0]) for fault, known in every_fault().items()]
    for law in LAWS:
        others = [pair for pair in KILLS if pair[1] == law and pair not in pairs]
        pairs += others[: max(0, FAULTS_OF_A_LAW - sum(killer == law for _, killer in pairs))]
    return pairs


TRIED = KILLS if NIGHTLY else foremost()


def short(name: str) -> str:
    return name.rpartition(":")[2].removeprefix("test_")


@pytest.mark.parametrize(("fault", "law"), TRIED, ids=short)
def test_a_known_fault_is_found_by_each_law_that_is_named_for_it(sim: World, fault: str, law: str) -> None:
    """Within 300 examples. The seed is fixed, so that this holds always or never."""
    found = search(LAWS[law], Trial(FAULTS[fault], sim), 300, seed_value=0, shrink=False)
    assert found.failures, f"{found.examples} examples, refused: {found.refusals[:1]}"


@pytest.mark.parametrize("fault", FAULTS, ids=short)
def test_a_known_fault_says_what_it_is_and_where_it_was_seen(fault: str) -> None:
    """By a code and an address, as `impls.faults` explains, or it is a recipe."""
    assert FAULTS[fault].known_fault
    assert every_fault()[fault].killed_by
    for law in every_fault()[fault].killed_by:
        assert law in LAWS, f"{fault} is killed by {law}, and there is no such law"
        assert concerns(LAWS[law], FAULTS[fault].claims), f"{fault} does not claim what {law} needs"
    known = r"^[A-Z]\d\d [VDS] https://|recipe|^systems: "
    of_a_peers_test = (
        fault.startswith("lockstep.impls.faults.peers:") and every_fault()[fault].source
    )  # the check it passes
    assert of_a_peers_test or re.search(known, every_fault()[fault].source)


@pytest.mark.parametrize("law", LAWS, ids=short)
def test_a_law_says_who_broke_it(law: str) -> None:
    """By an address, or it says that there is none."""
    assert re.search(r"[\w.-]+/[\w.-]+#\d|No report of it is known\.", " ".join(LAWS[law].says.split()))


@pytest.mark.parametrize(("twin", "law"), HELD, ids=short)
def test_an_odd_but_correct_twin_passes_every_law_that_it_claims(sim: World, twin: str, law: str) -> None:
    """Not vacuously. On few examples, as there are so many pairs."""
    trial = Trial(TWINS[twin], sim)
    found = search(LAWS[law], trial, EXAMPLES_OF_A_TWIN, seed_value=0)
    assert found.failures == []
    assert trial.witnessed[ENDED], found.refusals[:1]
    assert unwitnessed(LAWS[law], trial) == []
    assert trial.left == Counter()


@pytest.mark.parametrize("law", sorted({law for _, law in KILLS} & set(LAWS)), ids=short)
def test_an_implementation_that_does_nothing_keeps_no_law(sim: World, law: str) -> None:
    """It fails, or what the law is about never takes place: such a law has to witness that ranks send something.

    It claims what a fault of that law claims.
    """
    claims = next(FAULTS[fault].claims for fault, killer in KILLS if killer == law)
    trial = Trial(Implementation(IDLE, claims), sim)
    try:
        vacuous = unwitnessed(LAWS[law], trial)
    except LawBroken:
        return
    assert vacuous or search(LAWS[law], trial, 300, seed_value=0, shrink=False).failures


def test_every_law_kills_three_faults() -> None:
    killed = [law for _, law in TRIED]
    assert [law for law in LAWS if killed.count(law) < FAULTS_OF_A_LAW] == []


def test_every_law_is_tried_on_a_twin_in_a_short_run_too() -> None:
    assert {law for _, law in HELD} == set(LAWS)
