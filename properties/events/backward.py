"""One micro-batch: how it is drawn, described and written into a script."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from lockstep.oracle.events import Backward, Evaluate, Freeze, Raise
from lockstep.oracle.events.backward import LOSSES
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.fingerprint import coefficients
from lockstep.oracle.forwards import by_forward
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import BACKWARDS, EQUAL_FROM, Claims
from lockstep.properties.events.facet import Facet, Feature, Orders
from lockstep.properties.events.loop import SELDOM, Kind, Loop, Phase
from lockstep.properties.naming import names, parameter_name
from lockstep.properties.script import losses
from lockstep.properties.script.seen import by_rank, compare
from lockstep.properties.script.writer import Writer, finishes

# Words on a micro-batch that get lines of their own.
DIRECT_WORDS = "of a forward of the model itself, around what wraps it"
MEANWHILE_WORDS = {
    "evaluates": "between its forward and its backward, a forward of all parameters without autograd, in the mode of "
    "training",
    "drops gradients": "between its forward and its backward, gradients become None",
    "zeroes gradients": "between its forward and its backward, gradients become zero",
}
_OF_PARAMETERS = "half of the loss the caller makes of the parameters itself, {} the forward"
_OF_GRADIENTS = "the caller takes gradients by the coefficients of what the forward gives, and makes {} of them"
LOSS_WORDS = {
    "outputs, then parameters": _OF_PARAMETERS.format("after"),
    "parameters, then outputs": _OF_PARAMETERS.format("before"),
    "gradients": _OF_GRADIENTS.format("the loss"),
    "outputs and gradients": _OF_GRADIENTS.format("half of the loss"),
}
OVERFLOWS_WORDS = {
    "nan": "what overflows is nan",
    "-inf": "what overflows is -inf",
    "last": "of what overflows one element alone is inf, of the last parameter that backward reaches",
    "first": "of what overflows one element alone is inf, of the first parameter that backward reaches",
}
ENDS_WORDS = "and then, still inside no_sync, the caller ends the synchronization"
METRIC_WORDS = "and then the caller adds a number of its own up over the ranks"
# The values of `loss` for which the caller reads parameters, or takes gradients.
READ, TAKEN = LOSSES[1:3], LOSSES[3:]


def _accumulation(claims: Claims) -> bool:
    return claims.accumulation


def _together(loop: Loop, phase: Phase) -> None:
    last = loop.events[-1] if loop.local else None
    if not isinstance(last, Backward) or last.gone != (loop.gone or ()):
        loop.backward(phase, False)
    loop.backward(phase, False, together=True)


def _overflow(loop: Loop, phase: Phase) -> None:
    if loop.caller.loss_scale is not None:
        loop.backward(phase, overflow=True)


def _measure(loop: Loop, phase: Phase) -> None:
    if not loop.broadcasts:
        loop.backward(phase, meanwhile="evaluates")


def _zero_late(loop: Loop, phase: Phase) -> None:
    loop.averaged(phase)
    loop.backward(phase, meanwhile="drops gradients" if phase.shift % 2 == 0 else "zeroes gradients")


def _read(loop: Loop, phase: Phase) -> None:
    forms = READ if loop.claims.equal_from == EQUAL_FROM[0] else READ[:1]
    loop.backward(phase, loss=forms[phase.shift % len(forms)])


SYNCHRONIZE = Kind("synchronize", lambda loop, phase: loop.backward(phase), often=2, forward=True, while_joined=True)
LOCAL = Kind(
    "local",
    lambda loop, phase: loop.backward(phase, False),
    _accumulation,
    often=2,
    forward=True,
    while_joined=True,
)
NESTED = Kind(
    "nested",
    lambda loop, phase: loop.backward(phase, False, nested=True),
    _accumulation,
    forward=True,
    while_joined=True,
)
TOGETHER = Kind("together", _together, _accumulation, forward=True, while_joined=True)
OVERFLOW = Kind(
    "overflow",
    _overflow,
    lambda claims: not claims.plain_layers,  # plain layers multiply by zeros, and infinity times zero is nan
    forward=True,
    options=("loss scale",),
)
DIRECT = Kind(
    "direct",
    lambda loop, phase: loop.backward(phase, direct=True),
    lambda claims: claims.direct_forwards,
    apart=SELDOM,
)
MEASURE = Kind(
    "measure",
    _measure,
    lambda claims: claims.evaluates and claims.measures_late,
    apart="it costs a whole forward more",
    forward=True,
)
ZERO_LATE = Kind("zero late", _zero_late, lambda claims: claims.zeroes_late, apart=SELDOM, forward=True)
READ_PARAMETERS = Kind("read parameters", _read, lambda claims: claims.losses_read, apart=SELDOM, forward=True)
TAKE_GRADIENTS = Kind(
    "take gradients",
    lambda loop, phase: loop.backward(phase, loss=TAKEN[phase.shift % len(TAKEN)]),
    lambda claims: claims.double_backward,
    apart=SELDOM,
    forward=True,
)
METRIC = Kind(
    "metric",
    lambda loop, phase: loop.backward(phase, metric=True),
    lambda claims: claims.callers_collectives,
    apart=SELDOM,
    forward=True,
)


END_INSIDE = Kind(
    "end inside",
    lambda loop, phase: loop.backward(phase, False, nested=phase.shift % 2 == 1, ends=True),
    lambda claims: claims.accumulation and claims.ends_in_no_sync,
    apart=SELDOM,
    forward=True,
    while_joined=True,
)


class BackwardFacet(Facet[Backward]):
    """The facet of a micro-batch."""

    shown_by = SYNCHRONIZE

    def kinds(self) -> tuple[Kind, ...]:
        usual = (SYNCHRONIZE, LOCAL, OVERFLOW, NESTED, TOGETHER)
        return (*usual, DIRECT, MEASURE, ZERO_LATE, READ_PARAMETERS, TAKE_GRADIENTS, METRIC, END_INSIDE)

    def features(self) -> dict[str, Feature]:
        return {
            "accumulation": Feature(lambda s: not all(batch.synchronize for batch in s.microbatches), (LOCAL,)),
            "nested": Feature(lambda s: any(batch.nested for batch in s.microbatches), (NESTED,)),
            "together": Feature(lambda s: any(map(s.stays_in_no_sync, range(len(s.program)))), (TOGETHER,)),
            "unused": Feature(_leaves_some_unused, parameters=2, claim=lambda claims: claims.unused is not None),
            "idle rank": Feature(
                leaves_a_rank_idle, claim=lambda c: c.idle_ranks and c.unused is not None, by_chance=True
            ),
            "overflow": Feature(
                lambda s: any(batch.overflow for batch in s.microbatches), (OVERFLOW,), ("loss scale",)
            ),
            "direct": Feature(lambda s: any(batch.direct for batch in s.microbatches), (DIRECT,)),
            "measure": Feature(lambda s: any(batch.evaluates for batch in s.microbatches), (MEASURE,)),
            "zero late": Feature(lambda s: any(batch.zeroes for batch in s.microbatches), (ZERO_LATE,)),
            "read parameters": Feature(
                lambda s: any(batch.loss in READ for batch in s.microbatches), (READ_PARAMETERS,)
            ),
            "take gradients": Feature(
                lambda s: any(batch.loss in TAKEN for batch in s.microbatches), (TAKE_GRADIENTS,)
            ),
            "end inside": Feature(lambda s: any(batch.ends for batch in s.microbatches), (END_INSIDE,)),
            "metric": Feature(lambda s: any(batch.metric for batch in s.microbatches), (METRIC,)),
        }

    def beyond(self, claims: Claims, scenario: Scenario) -> str:
        if not claims.adds_to_averages and on_averages(scenario):
            return "what is synchronized on top of what was synchronized before"
        if any(batch.forwards > 1 for batch in scenario.microbatches) and not claims.several_forwards:
            return "several forwards before a backward"
        if any(batch.backwards > 1 for batch in scenario.microbatches) and claims.backwards is None:
            return "several backwards"
        if several_at_once(scenario) and claims.backwards != BACKWARDS[-1]:
            return "several backwards that synchronize"
        if not claims.hook_order and hook_orders_differ(scenario):
            return "different hook orders"
        if any(batch.direct and not batch.synchronize for batch in scenario.microbatches):
            return "a forward of the wrapped module itself inside no_sync"
        if claims.equal_from != EQUAL_FROM[0] and _begins_without_the_wrapper(scenario):
            return "something else than a forward of the wrapper right after construction"
        return ""

    def words(self, scenario: Scenario, place: int, event: Backward, expected: Expectation | None) -> list[str]:
        batch = scenario.batch(place)
        orders = [scenario.order(batch, rank) for rank in range(scenario.world_size)]
        where = "" if event.synchronize else "inside no_sync, "
        if scenario.stays_in_no_sync(place - 1):
            before = "outer" if isinstance(scenario.program[place - 1], Raise) else "same"
            where = f"inside the {before} no_sync, "
        where += "after a nested one has ended, " if event.nested else ""
        if event.passes > 1:
            where += f"{'twice' if event.passes == 2 else f'{event.passes} times'} through one forward, "
        elif event.forwards > 1:
            where += "one for each of" if event.backwards > 1 else "after"
            where += f" {event.forwards} forwards, "
        over = [" and overflows" if rank in event.overflow else "" for rank in range(scenario.world_size)]
        more = [
            DIRECT_WORDS * event.direct,
            LOSS_WORDS.get(event.loss, ""),
            OVERFLOWS_WORDS.get(event.overflows, "") * bool(event.overflow),
            MEANWHILE_WORDS.get(event.meanwhile, ""),
            METRIC_WORDS * event.metric,
            ENDS_WORDS * event.ends,
        ]
        told = [f"{'':10}{words}" for words in more if words]
        if len(set(zip(orders, over, strict=True))) == 1:
            return [f"backward: {where}every rank reaches {names(orders[0])}{over[0]}", *told]
        each = [
            f"backward: rank {rank} has run out of micro-batches"
            if rank in event.gone
            else f"backward: {where}rank {rank} reaches {names(orders[rank]) or 'no parameter'}{over[rank]}"
            for rank in range(len(orders))
        ]
        return [*each, *told]

    def lines(self, writer: Writer, number: int, event: Backward) -> list[str]:
        writer.calls = "model" if event.direct else "wrapped"
        lines = self._lines(writer, number, event)
        writer.calls = "wrapped"
        return [*lines, *(_metric(writer.scenario) if event.metric else [])]

    def _lines(self, writer: Writer, number: int, event: Backward) -> list[str]:
        scenario, own = writer.scenario, writer.role
        batch, ranks = scenario.batch(number), range(scenario.world_size)
        orders = [[*map(parameter_name, scenario.order(batch, rank))] for rank in ranks]
        shares = [by_forward(coefficients(scenario, rank)[batch], event.forwards) for rank in ranks]
        differentiated, halved = event.loss in TAKEN, event.loss not in (LOSSES[0], "gradients")
        shares = [[*first, [values / (1 + halved) for values in last]] for *first, last in shares]
        *first, last = (by_rank([_named(share) for share in each]) for each in zip(*shares, strict=True))
        lines = [f"orders = {by_rank(orders)}", f"coefficients = {last}"]
        if scenario.caller.keeps_gradients and event.synchronize:
            once = event.forwards == event.backwards == event.passes == 1
            lines += [f"kept, used, once = {{}}, orders[{own}], {once}"]
        for rank in event.overflow:
            lines += [f"if {own} == {rank}:", f"    {_overflows(writer, event, scenario.order(batch, rank))}"]
        aside = ""
        if any(not orders[rank] for rank in ranks if rank not in event.gone):
            aside = " + aside"
            lines += ["aside = torch.zeros((), requires_grad=True)  # a rank that uses no parameter has a backward too"]
        adds = {"increment": f"{batch * scenario.world_size} + rank + 1"} if scenario.mode == "train" else {}
        run: list[str] = []
        given = "inputs" if differentiated else f"coefficients[{own}]"
        order = f"orders[{own}]"
        if differentiated and not halved:
            order = losses.READ_TOO.format(order, "[::-1]" * (scenario.probe == "linear"))
        loss = writer.call(given, order, **adds)
        if differentiated:
            run = losses.differentiated(writer, loss, batch)
            loss = "(loss + taken)" if halved else "taken"
        elif halved:
            run, loss = losses.halved(writer, loss, event.loss == "parameters, then outputs")
        loss = f"({loss}{aside})" if aside else loss
        if first:
            lines += [f"earlier = [{', '.join(first)}]"]
            run += [f"losses = [{writer.call(f'each[{own}]', f'orders[{own}]')}{aside} for each in earlier]"]
        meanwhile = writer.zero_grad(event.zeroes.set_to_none) if event.zeroes is not None else []
        if event.evaluates:
            writer.calls = "wrapped"
            meanwhile += writer.evaluate(Evaluate(switch=False))
        meanwhile += writer.tell(writer.implementation.before) if event.synchronize else []
        run += _backwards(writer, event, loss, meanwhile)
        if event.synchronize:
            return [*lines, *writer.tell(writer.implementation.start), *run]
        run = [*(["with wrapped.no_sync():", "    pass"] if event.nested else []), *run]
        run += finishes(writer) if event.ends else []
        inside, stays = scenario.stays_in_no_sync(number - 1), scenario.stays_in_no_sync(number)
        if not inside and not stays:
            return [*lines, "with wrapped.no_sync():", *(f"    {line}" for line in run)]
        enter = ["local = contextlib.ExitStack()", "local.enter_context(wrapped.no_sync())"]
        return [*lines, *([] if inside else enter), *run, *([] if stays else ["local.close()"])]

    def simpler(self, event: Backward) -> Iterator[Backward]:
        yield Backward(event.orders)
        yield Backward(event.orders, event.synchronize)
        for name in ("direct", "meanwhile", "loss", "overflows", "metric", "ends"):
            usual: dict[str, Any] = {name: getattr(Backward, name)}
            yield replace(event, **usual)

    def reordered(self, event: Backward, change: Callable[[Orders], Iterable[Iterable[int]]]) -> Backward:
        return replace(event, orders=tuple(map(tuple, change(event.orders))))

    def renumbered(self, event: Backward, left: Callable[[Iterable[int]], tuple[int, ...]]) -> Backward:
        return self.reordered(event, lambda orders: map(left, orders))


FACET = BackwardFacet()


def hook_orders_differ(scenario: Scenario) -> bool:
    """True if in some micro-batch two ranks reach two parameters used by both in different orders."""
    return any(_reached_apart(scenario, batch) for batch in range(len(scenario.microbatches)))


def _reached_apart(scenario: Scenario, batch: int) -> bool:
    """True if in this micro-batch two ranks reach two parameters used by both in different orders."""
    for one, other in combinations((scenario.order(batch, rank) for rank in range(scenario.world_size)), 2):
        places = [other.index(parameter) for parameter in one if parameter in other]
        if any(second < first for first, second in pairwise(places)):
            return True
    return False


def _begins_without_the_wrapper(scenario: Scenario) -> bool:
    """True if some construction is followed by a forward of the bare model, or by reading its parameters."""
    first = (scenario.program[place] for place in scenario.places(Backward) if scenario.standings[place].built)
    return any(isinstance(event, Backward) and (event.direct or event.loss == READ[1]) for event in first)


def on_averages(scenario: Scenario) -> list[int]:
    """The places of the micro-batches whose gradients add to averages that were neither dropped nor zeroed."""
    batches = zip(scenario.places(Backward), scenario.microbatches, strict=True)
    return [place for place, batch in batches if scenario.standings[place].averages and batch.zeroes is None]


def several_at_once(scenario: Scenario) -> list[int]:
    """The places of the synchronizing micro-batches with several backwards."""
    batches = zip(scenario.places(Backward), scenario.microbatches, strict=True)
    return [place for place, batch in batches if batch.synchronize and batch.backwards > 1]


def after_local(scenario: Scenario) -> Iterator[int]:
    """The places of the micro-batches that follow one inside `no_sync`."""
    places = scenario.places(Backward)
    return (place for place, before in zip(places[1:], scenario.microbatches, strict=False) if not before.synchronize)


def _leaves_some_unused(scenario: Scenario) -> bool:
    """True if a parameter that is used somewhere, or is trainable throughout, is not used elsewhere."""
    trained = {index for index, parameter in enumerate(scenario.parameters) if parameter.trainable}
    per_rank = scenario.samples // scenario.world_size
    used = [
        {frozenset(order) for sample, order in enumerate(batch.orders) if sample // per_rank not in batch.gone}
        for batch in scenario.microbatches
    ]
    if scenario.has(Freeze):
        return any(len(orders) > 1 for orders in used)
    return any(orders != {frozenset(trained)} for orders in used)


def leaves_a_rank_idle(scenario: Scenario) -> bool:
    """True if a rank uses no parameter in one of its micro-batches."""
    ranks = range(scenario.world_size)
    return any(
        not batch.order(rank, scenario.world_size)
        for batch in scenario.microbatches
        for rank in ranks
        if rank not in batch.gone
    )


def _backwards(writer: Writer, event: Backward, loss: str, meanwhile: list[str]) -> list[str]:
    """The lines for the backwards. ``loss``: the last forward's; ``losses``: those of the others.

    ``meanwhile``: the lines between forward and backward.
    """
    scale = " * scale" if writer.scaled else ""
    if event.passes > 1:
        again = ["loss.backward(retain_graph=True)"] * (event.passes - 1)
        return [f"loss = {loss}{scale}", *meanwhile, *again, "loss.backward()"]
    if event.backwards > 1:
        each = f"(loss{scale}).backward()" if scale else "loss.backward()"
        return [f"losses.append({loss})", *meanwhile, "for loss in losses:", f"    {each}"]
    loss = f"sum(losses, {loss})" if event.forwards > 1 else loss
    loss = f"({loss}{scale})" if scale else loss
    if meanwhile:
        return [f"loss = {loss}", *meanwhile, "loss.backward()"]
    return [f"yield {loss}" if writer.shares_losses else f"{loss}.backward()"]


def _metric(scenario: Scenario) -> list[str]:
    """The lines for a collective of the caller's own."""
    group = ", group=process_group" * bool(scenario.outsiders)
    lines = ["metric = torch.tensor(rank + 1.0)", f"dist.all_reduce(metric{group})"]
    total = np.asarray(sum(range(1, scenario.world_size + 1)), dtype=np.float32)
    return [*lines, *compare("the sum", '{"the caller": metric}', {"the caller": total})]


def _overflows(writer: Writer, event: Backward, used: Sequence[int]) -> str:
    """The line that makes coefficients of a rank overflow: all of them, or one."""
    which = event.overflows
    if which not in ("first", "last"):
        mine = f"coefficients[{writer.role}]"
        return f"{mine} = dict.fromkeys({mine}, {which})"
    shapes = writer.scenario.parameters
    reached = [index for index in used if shapes[index].count]
    chosen = reached[:1] if which == "first" else reached[-1:]
    one = [f'coefficients[{writer.role}]["{parameter_name(i)}"]{"[-1]" * len(shapes[i].shape)} = inf' for i in chosen]
    return "".join(one) or "pass"


def _named(values: Sequence[Any]) -> dict[str, Any]:
    """The coefficients by parameter name.

    A tensor without elements is written as one number, as a list would lose its shape.
    """
    return {
        parameter_name(index): np.asarray(value, dtype=np.float64).tolist() or 0.0 for index, value in enumerate(values)
    }
