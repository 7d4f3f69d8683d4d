"""Every event has all that the properties must know of it, and what is missing is named."""

from dataclasses import dataclass
from typing import Any

import pytest

from lockstep.oracle.events import EVENTS, Event
from lockstep.oracle.model import Hyperparameters, LossScale, Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties import events
from lockstep.properties.conditions import AS_USUAL
from lockstep.properties.events import FACETS, KINDS, event_words, facet_in, facet_of, general_draw
from lockstep.properties.events.caller import TrainingOptions
from lockstep.properties.events.facet import Facet, Feature
from lockstep.properties.events.join import JOIN
from lockstep.properties.events.loop import Kind, Loop, Phase, RankSeed
from lockstep.properties.events.step import STEP
from lockstep.properties.implementations import Implementation
from lockstep.properties.ranks.names import Call
from lockstep.properties.script.construction import construct
from lockstep.properties.script.parts import writer_of
from lockstep.properties.strategies import features
from lockstep.properties.strategies.__main__ import EVERYTHING
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.programs import written
from lockstep.properties.tests.of_scenarios import ALL

TWO = (Parameter((1,)), Parameter((1,)))
EACH = pytest.mark.parametrize("event", FACETS, ids=lambda event: event.__name__)


SCALED = ("overflow", "unscale")  # kinds that take a loss scale


def loop_for(kind: Kind) -> Loop:
    """A loop in which a phase of that kind may come."""
    values, scale = Hyperparameters(), LossScale(2.0) if kind.name in SCALED else None
    loop = Loop(
        ALL, (RankSeed(0, 0),) * 2, TWO, TrainingOptions("SGD", values, (), False, scale, (values,)), False, False
    )
    if kind.name == "end join":
        JOIN.write(loop, Phase(JOIN))
    return loop


def test_every_event_has_a_facet_and_every_facet_an_event() -> None:
    assert list(FACETS) == list(EVENTS.values())
    assert len({type(facet) for facet in FACETS.values()}) == len(EVENTS)


@EACH
def test_every_event_is_written_by_each_kind_of_its_phases(event: type[Event]) -> None:
    for kind in FACETS[event].kinds():
        kind.write(loop := loop_for(kind), Phase(kind))
        assert event in map(type, loop.events), kind.name


@EACH
def test_every_event_has_words_and_lines_wherever_it_is_drawn(event: type[Event]) -> None:
    for kind in FACETS[event].kinds() or KINDS.values():
        loop = loop_for(kind)
        scenario = Scenario(2, TWO, written(loop, [Phase(kind)]), loss_scale=loop.caller.loss_scale)
        writer = writer_of(Implementation("a.b:C", ALL, finish=Call("finish")), scenario, None, AS_USUAL)
        construct(writer)
        for place, each in enumerate(scenario.program):
            assert all(event_words(scenario, place))
            assert facet_of(each).lines(writer, place, each)
        assert event in map(type, scenario.program), kind.name


def test_every_kind_is_in_the_general_draw_or_says_why_not() -> None:
    drawn = {kind.name for kind in general_draw(EVERYTHING)}
    for name, kind in KINDS.items():
        assert (name in drawn) != bool(kind.apart), name
    assert sum(len(facet.kinds()) for facet in FACETS.values()) == len(KINDS)


def test_the_orders_in_which_seeds_find_things_name_nothing_that_there_is_not() -> None:
    assert {*events._FIRST} <= {*KINDS}
    assert {*features._FIRST} <= {*FEATURES}


def test_every_kind_that_is_drawn_apart_is_brought_about_by_a_feature() -> None:
    asked = {kind for feature in FEATURES.values() for kind in feature.phases}
    assert {kind for kind in KINDS.values() if kind.apart} <= asked


def test_an_event_without_a_module_is_named() -> None:
    @dataclass(frozen=True)
    class Imagined(Event):
        def apply(self, *_: object) -> None: ...

    with pytest.raises(ImportError, match=r"^Imagined has no module lockstep\.properties\.events\.imagined$"):
        facet_in(events.__name__, Imagined)


def test_a_module_without_a_facet_is_named() -> None:
    class Model(Event):
        def apply(self, *_: object) -> None: ...

    with pytest.raises(ImportError, match=r"^lockstep\.oracle\.model has no FACET of class Facet for Model$"):
        facet_in("lockstep.oracle", Model)


@pytest.mark.parametrize("missing", ["kinds", "words", "lines"])
def test_a_facet_that_lacks_something_is_named(missing: str) -> None:
    told: dict[str, Any] = {name: lambda *_: () for name in ("kinds", "words", "lines") if name != missing}
    half: Any = type("Half", (Facet,), told)
    with pytest.raises(TypeError, match=f"Half.*{missing}"):
        half()


def test_an_event_that_nothing_draws_and_says_not_why_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = EVENTS["Finish"]
    monkeypatch.setattr(type(FACETS[finish]), "undrawn", "")
    with pytest.raises(ImportError, match=r"finish names no kind of phase that draws Finish, and no reason why"):
        facet_in(events.__name__, finish)


def test_an_option_that_there_is_not_and_a_second_claim_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no option 'sorcery' to draw; there are momentum, "):
        Feature(lambda scenario: True, options=("sorcery",))
    with pytest.raises(ValueError, match="has no other claim than theirs"):
        Feature(lambda scenario: True, (STEP,), claim=lambda claims: claims.freezing)
