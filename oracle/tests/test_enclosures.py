"""Sums and means of intervals hold what every order of reduction gives, or say that they do not know."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.oracle import enclosures
from lockstep.oracle.averaging import ANY_WAY, AVERAGINGS
from lockstep.oracle.events import Backward, Clip, Finish
from lockstep.oracle.formats import FORMATS
from lockstep.oracle.interpreter import interpret
from lockstep.oracle.intervals import Interval
from lockstep.oracle.lattice import Inexact
from lockstep.oracle.model import LossScale, Parameter
from lockstep.oracle.program import Scenario
from lockstep.oracle.setup import WIRES
from lockstep.oracle.tests.examples import examples

VALUES = st.lists(st.integers(-1000, 1000).map(lambda k: k * 2.0**-5 / 3), min_size=1, max_size=5)


def sums_in_every_order(terms: list[float], form: str) -> set[float]:
    """One by one, rounded to the format each time."""
    number = FORMATS[form].numpy.type
    found = set()
    for order in itertools.permutations(np.array(terms).astype(number)):
        total = order[0]
        for term in order[1:]:
            with np.errstate(over="ignore"):
                total = number(np.float64(total) + np.float64(term))
        found.add(float(total))
    return found


@pytest.mark.parametrize("form", FORMATS)
@given(terms=VALUES)
@examples(60)
def test_a_sum_holds_what_every_order_gives(form: str, terms: list[float]) -> None:
    held = [Interval.point(np.array([term]).astype(FORMATS[form].numpy).astype(np.float64)) for term in terms]
    told = enclosures.add(held, form)
    for total in sums_in_every_order(terms, form):
        assert told.contains([total]).all()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("averaging", AVERAGINGS)
@given(terms=VALUES)
@examples(40)
def test_a_mean_holds_what_every_order_gives(form: str, averaging: str, terms: list[float]) -> None:
    number, ranks = FORMATS[form].numpy.type, len(terms)
    rounded = np.array(terms).astype(number)
    told = enclosures.mean([Interval.point([float(term)]) for term in rounded], averaging, form)
    in_any_way = enclosures.mean([Interval.point([float(term)]) for term in rounded], ANY_WAY, form)
    if averaging == "sum then divide":
        means = {float(number(np.float64(total) / ranks)) for total in sums_in_every_order(terms, form)}
    else:
        factor = np.float64(number(1 / ranks))
        divided = [float(number(np.float64(x) / ranks)) for x in rounded]
        multiplied = [float(number(np.float64(x) * factor)) for x in rounded]
        means = sums_in_every_order(divided, form)
        if averaging == "multiply by reciprocal then sum":  # DDP divides what lies in its bucket already
            means |= sums_in_every_order(multiplied, form)
    for mean in means:
        assert told.contains([mean]).all()
        assert in_any_way.contains([mean]).all()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("wire", WIRES)
@given(terms=VALUES, dividing=st.sampled_from(("first", "on the wire", "last")), adds=st.booleans())
@examples(60)
def test_a_mean_holds_what_every_compression_gives(
    form: str, wire: str, terms: list[float], dividing: str, adds: bool
) -> None:
    """Cast to the wire, divided before, there or at the end, and added up there or, if ``adds``, at home."""
    home, away, ranks = FORMATS[form].numpy.type, FORMATS[wire].numpy.type, len(terms)
    mine = np.array(terms).astype(home)
    told = {way: enclosures.mean([Interval.point([float(x)]) for x in mine], way, form, wire) for way in AVERAGINGS}
    if dividing == "first":
        sent = (mine / np.float64(ranks)).astype(home).astype(away)
    elif dividing == "on the wire":
        sent = (mine.astype(away).astype(np.float32) / np.float32(ranks)).astype(away)
    else:
        sent = mine.astype(away)
    received = sent.astype(home if adds else away).astype(np.float64).tolist()
    for total in sums_in_every_order(received, form if adds else wire):
        mean = np.float64(home(total)) / ranks if dividing == "last" else total
        way = AVERAGINGS[0] if dividing == "last" else AVERAGINGS[1]
        assert told[way].contains([float(home(mean))]).all()


def test_a_sum_that_is_rounded_at_home_may_be_cast_to_the_wire_from_there() -> None:
    """1 + 2^-8 + 2^-12 is 1 + 2^-8 in float16, a tie in bfloat16, and goes to 1; cast at once it goes to 1 + 2^-7."""
    held = enclosures.add([Interval.point([1 + 2.0**-8]), Interval.point([2.0**-12])], "float16", "bfloat16")
    away, home = FORMATS["bfloat16"].numpy.type, FORMATS["float16"].numpy.type
    exact = 1 + 2.0**-8 + 2.0**-12
    casts = [float(away(home(exact))), float(away(exact)), float(home(exact))]
    assert casts == [1.0, 1 + 2.0**-7, 1 + 2.0**-8]
    for value in casts:
        assert held.contains([value]).all()


def test_a_compressed_mean_still_tells_a_contribution_that_is_missing_or_doubled() -> None:
    terms = [Interval.point([number]) for number in (1.03, 3.07, 4.1)]
    held = enclosures.mean(terms, AVERAGINGS[0], "float32", "bfloat16")
    assert held.contains([(1.03 + 3.07 + 4.1) / 3]).all()
    for wrong in (1.03 + 3.07, 1.03 + 3.07 + 2 * 4.1, 3.07 + 4.1):
        assert not held.contains([wrong / 3]).any()


def test_a_sum_that_overflows_on_the_way_in_some_orders_is_not_known() -> None:
    """28800 + 47232 is beyond float16, and with -17280 first nothing is."""
    terms = [Interval.point([number]) for number in (-17280.0, 28800.0, 47232.0)]
    assert {np.isinf(total) for total in sums_in_every_order([-17280.0, 28800.0, 47232.0], "float16")} == {True, False}
    with pytest.raises(Inexact, match="float16 on the way"):
        enclosures.add(terms, "float16")
    backward = (Backward(((0,),) * 3), Finish())
    scenario = Scenario(
        3,
        (Parameter((1,), "float16"),),
        (*backward, Clip(1.0), *backward),
        loss_scale=LossScale(128.0),
        signs="mixed",
    )
    with pytest.raises(Inexact):
        interpret(scenario, "sum then divide", "untouched")
