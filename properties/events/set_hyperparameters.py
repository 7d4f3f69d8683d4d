"""Changing hyper-parameters between steps: how it is drawn, described and written into a script."""

from lockstep.oracle.events import SetHyperparameters
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.events.caller import choose
from lockstep.properties.events.facet import Facet, Feature, has
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.events.step import STEP
from lockstep.properties.naming import settings_words
from lockstep.properties.script.writer import Writer


def _set(loop: Loop, phase: Phase) -> None:
    loop.settled(phase)
    group = None if phase.shift == 0 else (phase.shift - 1) % (len(loop.caller.groups) + 1)
    loop.events.append(SetHyperparameters(choose(loop.caller.changes, phase.twist, loop.exact), group))


SET_HYPERPARAMETERS = Kind("set hyperparameters", _set)


class SetHyperparametersFacet(Facet[SetHyperparameters]):
    """The facet of changed hyper-parameters."""

    shown_by = STEP
    optimizes = True

    def kinds(self) -> tuple[Kind, ...]:
        return (SET_HYPERPARAMETERS,)

    def features(self) -> dict[str, Feature]:
        return {"set hyperparameters": Feature(has(SetHyperparameters), (SET_HYPERPARAMETERS,))}

    def words(
        self, scenario: Scenario, place: int, event: SetHyperparameters, expected: Expectation | None
    ) -> list[str]:
        whose = "every group" if event.group is None else f"group {event.group}"
        return [f"set for {whose}: {', '.join(settings_words(event.values)) or 'nothing'}"]

    def lines(self, writer: Writer, number: int, event: SetHyperparameters) -> list[str]:
        groups = writer.groups
        if event.group is not None:
            groups += f"[{event.group} : {event.group + 1}]"
        if event.group is not None and writer.several:  # a group without parameters has no optimizer
            groups = f"optimizers[{event.group}].param_groups" if (event.group,) in writer.scenario.optimizers else "()"
        if writer.conditions.scheduled:
            rate = event.values.learning_rate
            rates = f"[{rate} if {event.group} in (None, number) else group['lr'] for number, group in enumerate("
            return [f"Sets(optimizer, {rates}optimizer.param_groups)])"]
        values = {"lr" if k == "learning_rate" else k: v for k, v in vars(event.values).items() if v is not None}
        return [f"for group in {groups}:", f"    group.update({', '.join(f'{k}={v!r}' for k, v in values.items())})"]


FACET = SetHyperparametersFacet()
