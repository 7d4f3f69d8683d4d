"""Replacing parameters by new tensors: how it is drawn, described and written into a script."""

from collections.abc import Iterator

from lockstep.oracle.events import Replace
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import RENAMED, Claims
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.naming import names
from lockstep.properties.script.head import place as held_at
from lockstep.properties.script.optimizers import held
from lockstep.properties.script.writer import Writer


def _replace(loop: Loop, phase: Phase) -> None:
    loop.settled(phase)
    if loop.gradients:
        loop.zero()
    loop.events.append(Replace((loop.tensor(phase),)))


REPLACE = Kind("replace", _replace, lambda claims: bool(claims.replaced_parameters))


class ReplaceFacet(Facet[Replace]):
    """The facet of replaced parameters."""

    shown_by = SYNCHRONIZE
    optimizes = True

    def kinds(self) -> tuple[Kind, ...]:
        return (REPLACE,)

    def features(self) -> dict[str, Feature]:
        return {"replace": Feature(has(Replace), (REPLACE,))}

    def beyond(self, claims: Claims, scenario: Scenario) -> str:
        renamed = any(event.renamed for _, event in scenario.events(Replace))
        return "new parameters under new names" if renamed and claims.replaced_parameters != RENAMED else ""

    def words(self, scenario: Scenario, place: int, event: Replace, expected: Expectation | None) -> list[str]:
        where = ", under names that the model did not have" * event.renamed
        return [f"replace: the caller assigns new tensors for {names(event.parameters)}, with the same values{where}"]

    def lines(self, writer: Writer, number: int, event: Replace) -> list[str]:
        return [line for tensor in event.parameters for line in _replaced(writer, tensor, event.renamed)]

    def simpler(self, event: Replace) -> Iterator[Replace]:
        yield Replace(event.parameters)


FACET = ReplaceFacet()


def _assigned(place: str, renamed: bool) -> list[str]:
    """The lines that assign the new tensor to a place like model.unit0.a, or register it there under another name."""
    home, _, name = place.rpartition(".")
    if not renamed:
        return [f"{place} = new"]
    aside = f"vars({home})[{name!r}] = new  # no parameter of that name any more, but forward reads it"
    return [f"del {place}", f"{home}.register_parameter({name + '_new'!r}, new)", aside]


def _replaced(writer: Writer, tensor: int, renamed: bool) -> list[str]:
    """The lines that replace a parameter."""
    mine, stepped = held_at(writer.scenario, tensor), held(writer, tensor)
    lines = [f"old, held = {mine}, {stepped}"]
    lines += ["new = nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad)"]
    places = [held_at(writer.scenario, index) for index in writer.scenario.names(tensor)]
    lines += [line for place in places for line in _assigned(place, renamed)]
    if stepped != mine:
        lines += [f"new = {stepped} = nn.Parameter(new.detach().float())"]
    pops = ["for each in optimizers.values():", "    each.state.pop(held, None)"]
    lines += pops if writer.several else ["optimizer.state.pop(held, None)"]
    return [
        *lines,
        f"for group in {writer.groups}:",
        '    group["params"] = [new if each is held else each for each in group["params"]]',
    ]
