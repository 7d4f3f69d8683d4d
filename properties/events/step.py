"""A step of the optimizer, or of some of several: how it is drawn, described and written into a script."""

from collections.abc import Callable, Iterator

from lockstep.oracle.events import Event, Load, Save, SaveAndLoad, Step
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.naming import names
from lockstep.properties.script import optimizers, stepped
from lockstep.properties.script.writer import Writer


def _step(loop: Loop, phase: Phase) -> None:
    _stepped(loop, phase, [Step()])


def _steps_of_some(loop: Loop, phase: Phase) -> None:
    _stepped(loop, phase, _of_some(loop, phase))


def _stepped(loop: Loop, phase: Phase, steps: list[Event]) -> None:
    loop.averaged(phase)
    loop.events += steps
    loop.unscaled = False
    if loop.caller.hyperparameters.nesterov or not loop.claims.outlive_steps:
        loop.zero()  # torch's foreach step, the default on a GPU, changes gradients for Nesterov momentum


def _of_some(loop: Loop, phase: Phase) -> list[Event]:
    """Steps of some of the caller's optimizers, in one of four forms.

    The forms: all in reverse order; the last alone; the last, then the others; the first alone.
    """
    first = set(loop.tensors).difference(*(group.parameters for group in loop.caller.groups))
    numbers = [number for number in range(len(loop.caller.groups) + 1) if number or first]
    if loop.caller.loss_scale is not None:
        return [Step()]
    form = phase.twist % 4
    if form == 2 and len(numbers) > 1:
        return [Step((numbers[-1],)), Step((*numbers[:-1],))]
    return [Step(((*numbers[::-1],), (numbers[-1],), (numbers[-1],), (numbers[0],))[form])]


def _idle_step(loop: Loop, phase: Phase) -> None:
    if loop.caller.loss_scale is None:  # a loss scale depends on the overflow of gradients
        loop.settled(phase)
        if loop.gradients:
            loop.zero()
        loop.events.append(Step())


STEP = Kind("step", _step, often=3, while_joined=True)
STEPS_OF_SOME = Kind(
    "steps of some",
    _steps_of_some,
    lambda claims: claims.several_optimizers,
    apart="one of these gives each group an optimizer, and most programs are to have one optimizer",
)
IDLE_STEP = Kind(
    "idle step", _idle_step, lambda claims: claims.idle_steps, apart="it drops gradients, which others are to look at"
)


class StepFacet(Facet[Step]):
    """The facet of a step."""

    optimizes = True

    def kinds(self) -> tuple[Kind, ...]:
        return STEP, STEPS_OF_SOME, IDLE_STEP

    def features(self) -> dict[str, Feature]:
        return {
            "step": Feature(has(Step), (STEP,)),
            "several optimizers": Feature(lambda s: len(s.optimizers) > 1, (STEPS_OF_SOME,), ("groups",), parameters=2),
            "idle step": Feature(_steps_idly, (IDLE_STEP,)),
            "several steps": Feature(_steps_apart, (STEP, SYNCHRONIZE, STEP)),
        }

    def beyond(self, claims: Claims, scenario: Scenario) -> str:
        if not claims.outlive_steps and reads_after_steps(scenario, lambda place: True):
            return "gradients that have been stepped"
        return ""

    def words(self, scenario: Scenario, place: int, event: Step, expected: Expectation | None) -> list[str]:
        some = scenario.standings[place].gradients
        whose = _whose(scenario, event)
        return [f"step{whose}{'' if some else ', without any gradient'}: {_told(scenario, place, event, expected)}"]

    def lines(self, writer: Writer, number: int, event: Step) -> list[str]:
        lines = optimizers.add(writer) if number == writer.conditions.added else []
        masters = writer.masters and not writer.in_pieces
        if masters:
            lines += ["for name, master in masters.items():", "    p = tensors()[name]"]
            lines += ["    master.grad = None if p.grad is None else p.grad.float()"]
        of = [group for group, *_ in writer.scenario.optimizers] if event.groups is None else event.groups
        for step in [f"optimizers[{group}].step" for group in of] if writer.several else ["optimizer.step"]:
            lines += stepped.with_closure(step) if writer.conditions.closures else [f"{step}()"]
        if masters:
            lines += ["with torch.no_grad():", "    for name, master in masters.items():"]
            lines += ["        if master.grad is not None:", "            tensors()[name].copy_(master)"]
        if not writer.scaled:
            return lines
        assert writer.scenario.loss_scale is not None
        scaled = ["if not unscaled:", *(f"    {line}" for line in optimizers.unscale(writer))]
        scaled += ["if not skip:", *(f"    {line}" for line in lines), "steps = 0 if skip else steps + 1"]
        scaled += ["if skip:", "    scale /= 2", f"elif steps == {writer.scenario.loss_scale.growth_interval}:"]
        return [*scaled, "    scale, steps = scale * 2, 0", "unscaled = skip = False"]

    def simpler(self, event: Step) -> Iterator[Step]:
        if event.groups is not None:
            yield Step()


FACET = StepFacet()


def reads_stepped_gradients(scenario: Scenario) -> bool:
    """True if gradients are used after a step with Nesterov momentum, in which torch's foreach form changes them."""

    def adds(place: int) -> bool:
        return any(getattr(options, "nesterov", False) for options in scenario.standings[place].settings)

    return reads_after_steps(scenario, adds)


def reads_after_steps(scenario: Scenario, which: Callable[[int], bool]) -> bool:
    """True if gradients are used after a step that used them. ``which``: the places of the steps that count."""
    everything = {*range(len(scenario.groups) + 1)}
    stepped: set[int] = set()  # numbers of groups
    for place, event in enumerate(scenario.program):
        match event:
            case Step():
                of = everything if event.groups is None else {*event.groups}
                if stepped & of:
                    return True
                stepped |= of if scenario.standings[place].gradients and which(place) else set()
            case _ if event.ends_gradients:
                stepped = set()
            case _ if stepped and event.reads_gradients:
                return True
    return False


def _steps_apart(scenario: Scenario) -> bool:
    """True if there are two steps with a synchronization in between."""
    batches = [scenario.batch(place) for place in scenario.places(Step)]
    between = scenario.microbatches[batches[0] : batches[-1]] if batches else ()
    return any(batch.synchronize for batch in between)


def _steps_idly(scenario: Scenario) -> bool:
    """True if there is a step without any gradient."""
    return any(not scenario.standings[place].gradients for place in scenario.places(Step))


def _whose(scenario: Scenario, event: Step) -> str:
    """The optimizers of the step, if there are several, named by their parameters."""
    if len(scenario.optimizers) == 1:
        return ""
    of = [number for (number,) in scenario.optimizers] if event.groups is None else event.groups
    return f" of the optimizer of {', then of that of '.join(names(scenario.all_groups[n].parameters) for n in of)}"


def _told(scenario: Scenario, place: int, event: Step, expected: Expectation | None) -> str:
    """The optimizer and its learning rates, or a note that the step is skipped; and the change of the loss scale."""
    settings = scenario.standings[place].settings
    of = event.groups if event.groups is not None else range(len(scenario.all_groups))
    rates = [f"{settings[number].lr:g}" for number in of if scenario.all_groups[number].parameters]
    told = f"learning rate {rates[0]}" if len(set(rates)) == 1 else f"learning rates {', '.join(rates)}"
    words = f"{scenario.optimizer} with {told}"
    if expected is None or scenario.loss_scale is None:
        return words
    before, after = _loss_scale(scenario, place, expected), expected.loss_scales[place]
    if after < before:
        ranks = scenario.overflowed(place)
        words = f"to be skipped, as a gradient overflowed on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return words if after == before else f"{words}; the loss scale becomes {after:g}"


def _loss_scale(scenario: Scenario, place: int, expected: Expectation) -> float:
    """The loss scale right before the event of that place."""
    assert scenario.loss_scale is not None
    scale = saved = scenario.loss_scale.initial
    for earlier, event in enumerate(scenario.program[:place]):
        match event:
            case SaveAndLoad(optimizer=False) | Load(optimizer=False):
                scale = scenario.loss_scale.initial
            case Save():
                saved = scale
            case Load():
                scale = saved
        scale = expected.loss_scales.get(earlier, scale)
    return scale
