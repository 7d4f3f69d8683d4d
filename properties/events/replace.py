"""New tensors in the place of parameters: how that is drawn, told and written into a script."""

from lockstep.oracle.events import Replace
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
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


REPLACE = Kind("replace", _replace, lambda claims: claims.replaced_parameters)


class ReplaceFacet(Facet[Replace]):
    """The facet of replaced parameters: how it is drawn, told and written into a script."""

    shown_by = SYNCHRONIZE
    optimizes = True

    def kinds(self) -> tuple[Kind, ...]:
        return (REPLACE,)

    def features(self) -> dict[str, Feature]:
        return {"replace": Feature(has(Replace), (REPLACE,))}

    def words(self, scenario: Scenario, place: int, event: Replace, expected: Expectation | None) -> list[str]:
        return [f"replace: the caller assigns new tensors for {names(event.parameters)}, with the same values"]

    def lines(self, writer: Writer, number: int, event: Replace) -> list[str]:
        return [line for tensor in event.parameters for line in _replaced(writer, tensor)]


FACET = ReplaceFacet()


def _replaced(writer: Writer, tensor: int) -> list[str]:
    """A new tensor for a parameter."""
    mine, stepped = held_at(writer.scenario, tensor), held(writer, tensor)
    lines = [f"old, held = {mine}, {stepped}"]
    lines += ["new = nn.Parameter(old.detach().clone(), requires_grad=old.requires_grad)"]
    lines += [f"{held_at(writer.scenario, index)} = new" for index in writer.scenario.names(tensor)]
    if stepped != mine:
        lines += [f"new = {stepped} = nn.Parameter(new.detach().float())"]
    pops = ["for each in optimizers.values():", "    each.state.pop(held, None)"]
    lines += pops if writer.several else ["optimizer.state.pop(held, None)"]
    return [
        *lines,
        f"for group in {writer.groups}:",
        '    group["params"] = [new if each is held else each for each in group["params"]]',
    ]
