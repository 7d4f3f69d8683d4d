"""An error of the caller, which it catches: how it is drawn, described and written into a script."""

from lockstep.oracle.events import Backward, Freeze, Raise, Step
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import Claims
from lockstep.properties.events.backward import SYNCHRONIZE
from lockstep.properties.events.facet import Facet, Feature, has, in_turn
from lockstep.properties.events.freeze import FREEZE
from lockstep.properties.events.loop import Kind, Loop, Phase
from lockstep.properties.events.step import STEP
from lockstep.properties.script.writer import SWITCH, Writer

# The usual one comes first.
RAISES_DRAWN = ("forward", "backward", "hook", "module", "no_sync", "backward", "evaluation")


def _unclaimed(claims: Claims, where: str, synchronize: bool) -> str:
    """The part of an error at that place that is not claimed; empty if there is none."""
    if not synchronize and not claims.accumulation:
        return "an error inside no_sync"
    evaluates = claims.evaluates if synchronize else claims.measures_losses
    return "an error in an evaluation" if where == "evaluation" and not evaluates else ""


def _raise(loop: Loop, phase: Phase) -> None:
    """Write an error, inside `no_sync` only if there is one."""
    if loop.broadcasts:
        return
    where = RAISES_DRAWN[phase.shift % len(RAISES_DRAWN)]
    synchronize = phase.twist % 2 == 1 or bool(_unclaimed(loop.claims, where, False))
    if where == "no_sync" and synchronize:
        where = "forward"
    if synchronize and _unclaimed(loop.claims, where, True):
        where = "module"
    # If parameters must be gathered, in a micro-batch or perhaps in a module, one rank cannot run it alone.
    gathers = loop.claims.stage == 3 or (loop.claims.stage is not None and where == "module")
    alone = not (synchronize and where in ("backward", "hook")) and not gathers and where != "evaluation"
    rank = -(1 + phase.shift) % len(loop.ranks) if alone and phase.twist // 2 % 2 else None
    nested = not synchronize and phase.twist // 4 == 1
    loop.events.append(event := Raise(where, rank, synchronize, nested))
    if event.drops_gradients:
        loop.dropped()
    if nested:
        loop.backward(phase, False, together=True)


RAISE = Kind("raise", _raise, lambda claims: claims.survives_errors)


class RaiseFacet(Facet[Raise]):
    """The facet of an error of the caller."""

    shown_by = SYNCHRONIZE

    def kinds(self) -> tuple[Kind, ...]:
        return (RAISE,)

    def features(self) -> dict[str, Feature]:
        return {
            "raise": Feature(has(Raise), (RAISE,)),
            "raise, go on": Feature(
                lambda s: in_turn(s, Raise, Step, Backward), (RAISE, SYNCHRONIZE, STEP, SYNCHRONIZE), parameters=2
            ),
            "raise, freeze": Feature(
                lambda s: in_turn(s, Raise, Freeze, Backward), (RAISE, FREEZE, SYNCHRONIZE), parameters=3
            ),
        }

    def beyond(self, claims: Claims, scenario: Scenario) -> str:
        told = (_unclaimed(claims, event.where, event.synchronize) for _, event in scenario.events(Raise))
        return next(filter(None, told), "")

    def words(self, scenario: Scenario, place: int, event: Raise, expected: Expectation | None) -> list[str]:
        where = {"hook": "a ", "module": "a ", "evaluation": "an "}.get(event.where, "") + event.where
        who = "every rank" if event.rank is None else f"rank {event.rank}"
        inside = ", inside a no_sync that is nested in another" if event.nested else ", inside no_sync"
        inside = "" if event.synchronize else inside
        what = "a KeyboardInterrupt" if event.where == "no_sync" else "an error of the caller's"
        return [f"{what}, raised and caught on {who} in {where}{inside}"]

    def lines(self, writer: Writer, number: int, event: Raise) -> list[str]:
        scenario = writer.scenario
        body = ["buffers = copy.deepcopy(dict(model.named_buffers()))"] if scenario.buffers else []
        evaluates = event.where == "evaluation"
        body += [*SWITCH, "        module.eval()"] if evaluates else []
        body += [f'fails = "{"module" if evaluates else event.where}"', "try:"]
        if event.where == "no_sync":
            body += ["    with wrapped.no_sync():", "        raise KeyboardInterrupt  # as Ctrl-C does"]
        elif evaluates:
            inside = "" if event.synchronize else "wrapped.no_sync(), "
            call = writer.call("dict.fromkeys(tensors(), 0.0)", "list(tensors())", fails="fails")
            body += [f"    with {inside}torch.no_grad():", f"        {call}"]
        else:
            body += ["    trained = [name for name, p in tensors().items() if p.requires_grad][::-1]"]
            scale = " * scale" if writer.scaled else ""
            run = f"({writer.call('dict.fromkeys(tensors(), nan)', 'trained', fails='fails')}{scale}).backward()"
            body += [f"    {run}"] if event.synchronize else ["    with wrapped.no_sync():", f"        {run}"]
        body += ["except (CallersError, KeyboardInterrupt):", "    pass", 'fails = ""']
        body += [*SWITCH, "        module.train()"] if evaluates and scenario.mode == "train" else []
        if scenario.buffers:
            body += ["for name, buffer in model.named_buffers():", "    buffer.copy_(buffers[name])"]
        if event.rank is not None:
            body = [f"if {writer.role} == {event.rank}:", *(f"    {line}" for line in body)]
        body += writer.zero_grad(set_to_none=True) if event.drops_gradients else []
        enter = ["local = contextlib.ExitStack()", "local.enter_context(wrapped.no_sync())"] if event.nested else []
        ends = event.nested and not scenario.stays_in_no_sync(number)
        return [*enter, *body, *(["local.close()"] if ends else [])]


FACET = RaiseFacet()
