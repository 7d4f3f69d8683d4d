"""Gradients that fit the format in which they travel: whatever is cast to it, and where, no bit is another."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle.averaging import AVERAGINGS
from lockstep.oracle.events import Backward, Event, Finish
from lockstep.oracle.fingerprint import capacity, coefficients, runs_needed
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import CANCELLING, WIRES
from lockstep.oracle.tests.examples import examples


@st.composite
def windows(draw: st.DrawFn) -> Scenario:
    """One window of some micro-batches on some ranks, thinned out until everything fits; several dtypes."""
    ranks, local = draw(st.sampled_from((2, 3, 4, 5, 6, 8))), draw(st.integers(0, 3))
    model = draw(st.lists(st.builds(Parameter, st.just((3,)), st.sampled_from(tuple(FORMATS))), min_size=1, max_size=3))
    batch = Backward((tuple(range(len(model))),) * ranks)
    program: tuple[Event, ...] = (*[Backward(batch.orders, False)] * local, batch, Finish())
    signs, wire = draw(st.sampled_from(("positive", "mixed", "negative"))), draw(st.sampled_from(WIRES))
    whole = Scenario(ranks, tuple(model), program, signs=signs, wire=wire)
    runs = runs_needed(whole)
    return replace(whole, sparse=(draw(st.integers(0, runs - 1)), runs))


@given(scenario=windows(), averaging=st.sampled_from(AVERAGINGS), data=st.data())
@examples(200)
def test_no_compression_changes_a_bit(scenario: Scenario, averaging: str, data: st.DataObject) -> None:
    """Cast before or after dividing, added up in the format of the wire or in their own, in any order."""
    try:
        (expected,) = interpret(scenario, averaging).gradients.values()
    except Inexact:
        return
    ranks, away = scenario.world_size, FORMATS[scenario.wire].numpy
    order = data.draw(st.permutations(range(ranks)))
    divides_away, adds_away = data.draw(st.booleans()), data.draw(st.booleans())
    for index, parameter in enumerate(scenario.parameters):
        home = FORMATS[parameter.dtype].numpy
        of_ranks = []
        for rank in order:
            own = np.sum([batch[index] for batch in coefficients(scenario, rank)], axis=0).astype(home)
            there = own.astype(away)
            assert (there.astype(home) == own).all()
            if averaging != AVERAGINGS[0]:
                there = (
                    (there / away.type(ranks)).astype(away) if divides_away else (own / home.type(ranks)).astype(away)
                )
            of_ranks.append(there if adds_away else there.astype(home))
        total = of_ranks[0]
        for each in of_ranks[1:]:
            total = (total + each).astype(total.dtype)
        if averaging == AVERAGINGS[0]:
            total = total / away.type(ranks) if divides_away and adds_away else total.astype(home) / home.type(ranks)
        value = expected[index]
        assert isinstance(value, np.ndarray)
        assert total.astype(home).tobytes() == value.tobytes()


@pytest.mark.parametrize("averaging", AVERAGINGS)
def test_nearly_all_of_these_windows_are_exact(averaging: str) -> None:
    """Or the test above would show nothing."""
    counts = {True: 0, False: 0}

    @given(scenario=windows())
    @examples(100)
    def count(scenario: Scenario) -> None:
        try:
            interpret(scenario, averaging)
        except Inexact:
            counts[False] += 1
        else:
            counts[True] += 1

    count()
    assert counts[True] > 9 * counts[False]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("micro_batches", [2, 3, 4, 5])
def test_what_cancels_shows_who_accumulates_in_the_format_of_the_wire(wire: str, micro_batches: int) -> None:
    """The sum fits it, what is there in between does not; in their own format nothing rounds."""
    batch = Backward(((0, 1),) * 2)
    program: tuple[Event, ...] = (*[replace(batch, synchronize=False)] * (micro_batches - 1), batch, Finish())
    model = (Parameter((2,)), Parameter((2,), wire))
    whole = Scenario(2, model, program, wire=wire, signs=CANCELLING)
    scenario = replace(whole, sparse=(0, runs_needed(whole)))
    (expected,) = interpret(scenario).gradients.values()
    for index, shows in ((0, True), (1, False)):
        own, rounded = FORMATS[model[index].dtype].numpy, FORMATS[wire].numpy
        sums = np.zeros((2, 2, 2))  # in which format they accumulate, rank, element
        for rank in range(2):
            for batch_of_rank in coefficients(scenario, rank):
                for way, form in enumerate((own, rounded)):
                    sums[way, rank] = (sums[way, rank] + batch_of_rank[index]).astype(form).astype(np.float64)
        value = expected[index]
        assert isinstance(value, np.ndarray)
        assert (sums[0].sum(axis=0) / 2).astype(own).tobytes() == value.tobytes()
        assert (sums[1] != sums[0]).any() == shows


@pytest.mark.parametrize("wire", WIRES)
def test_what_travels_must_fit_what_it_travels_in(wire: str) -> None:
    """In float32 there is room for the numbers of 5 ranks and 4 micro-batches, in 16 bits there is not."""
    program: tuple[Event, ...] = (*[Backward(((0,),) * 5, False)] * 3, Backward(((0,),) * 5), Finish())
    plain = Scenario(5, (Parameter((2,)),), program)
    narrow = Scenario(5, (Parameter((2,)),), program, wire=wire)
    assert capacity(narrow, 0) == capacity(plain, 0) // 2 ** (24 - FORMATS[wire].precision)
    assert runs_needed(plain) == 1
    assert runs_needed(narrow) > 1


def test_a_gradient_that_would_be_rounded_on_the_wire_is_not_told() -> None:
    """Weights up to 300 have more bits than bfloat16, and so have the gradients of the quadratic probe."""
    program = (Backward(((0,), (0,))), Finish())
    plain = Scenario(2, (Parameter((300,)),), program, probe="quadratic")
    assert interpret(plain).exact
    with pytest.raises(Inexact, match="is not representable"):
        interpret(replace(plain, wire="bfloat16"))


def test_one_contribution_alone_is_one_whatever_cancels() -> None:
    """As a report asks of each what it counts."""
    program = (Backward(((0,), (0,)), False), Backward(((0,), (0,))), Finish())
    alone = Scenario(2, (Parameter((2,)),), program, wire="bfloat16", signs=CANCELLING, only=(0, 1, 0, 1))
    told = [[batch[0].tolist() for batch in coefficients(alone, rank)] for rank in range(2)]
    assert told == [[[0, 0], [0, 0]], [[0, 1], [0, 0]]]


def test_another_dtype_for_the_wire_is_refused() -> None:
    with pytest.raises(
        ValueError, match="gradients travel in one of bfloat16, float16, or, '', in their own, not 'fp8'"
    ):
        Scenario(1, (Parameter((1,)),), (Backward(((0,),)), Finish()), wire="fp8")
