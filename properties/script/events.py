"""A program as plain torch, event by event; after each, what must be seen."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from lockstep.oracle.events import (
    Backward,
    Clip,
    EndJoin,
    Evaluate,
    Event,
    Finish,
    Freeze,
    Join,
    Load,
    Raise,
    Replace,
    Save,
    SaveAndLoad,
    SetHyperparameters,
    Step,
    Unscale,
    Write,
    ZeroGrad,
)
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.fingerprint import coefficients
from lockstep.oracle.forwards import by_forward
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import EQUAL_FROM
from lockstep.properties.conditions import Conditions
from lockstep.properties.implementations import Implementation
from lockstep.properties.naming import MEASURES, event_words, parameter_name
from lockstep.properties.ranks import adapter
from lockstep.properties.script import between, checkpoints, optimizers
from lockstep.properties.script.head import beside, initial_values, may_hold_pieces, place
from lockstep.properties.script.seen import by_name, by_rank, compare, seen
from lockstep.properties.script.sharded import GROUPS

# Whoever has a mode, the model or what wraps it.
SWITCH = ("for module in (wrapped, model):", "    if isinstance(module, nn.Module):")
_STEPS = (Step, SetHyperparameters, SaveAndLoad, Save, Replace)


class Writer:
    """Writes the lines of a script from the first construction of the model on. ``shares_losses``: whether what goes
    backward is for others to say, to whom it yields its losses.
    """

    shares_losses = False

    def __init__(
        self,
        implementation: Implementation,
        scenario: Scenario,
        expected: Expectation | None,
        conditions: Conditions,
    ) -> None:
        self.implementation, self.scenario, self.expected = implementation, scenario, expected
        self.conditions, self.looks = conditions, conditions.part.looks
        # Whether the caller's optimizer is made before ranks are equal.
        self.made_first = conditions.optimizer_first and implementation.claims.equal_from != EQUAL_FROM[0]
        self.made_before = conditions.optimizer_before  # it is wrapped
        self.asked = "wrapped" if conditions.asks_the_wrapper else "model"  # for parameters and state
        self.calls = "wrapped"  # by what name a forward is called
        self.role = "role" if conditions.roles else "rank"  # whose samples a rank has
        self.frozen = {index for index, parameter in enumerate(scenario.parameters) if not parameter.trainable}
        self.watched = set[int]()  # the tensors with a hook in which the caller may raise
        self.optimizes = scenario.has(*_STEPS) or bool(conditions.part.saves)
        self.raises = scenario.has(Raise)
        self.masters = self.optimizes and scenario.masters
        self.scaled = scenario.loss_scale is not None
        self.in_pieces = may_hold_pieces(implementation)
        self.several = len(scenario.optimizers) > 1  # one for each group
        self.groups = GROUPS[self.several]
        self.values = "values()" if self.in_pieces else "tensors()"

    def parts(self) -> list[list[str]]:
        """The lines of the construction, and then of every event."""
        ranks = range(self.scenario.world_size)
        at_once = self.implementation.claims.equal_from == EQUAL_FROM[0]
        makes = "wrapping makes" if at_once else "the first forward makes"
        lines = ["", f"# Every rank begins with values of its own; {makes} them rank 0's."]
        lines += [f"initial = {by_rank([initial_values(self.scenario, rank) for rank in ranks])}"]
        if self.conditions.roles:
            lines += [f"role = {list(self.conditions.roles)}[rank]  # the rank whose samples this one has"]
        lines += between.SEEDED if self.conditions.seeded else []
        lines += self.construct()
        go_on = [between.GO_ON] * self.conditions.seeded
        lines += go_on
        lines += self.optimizer_of_the_caller() if self.made_first else []
        lines += self.equal() if at_once else []
        parts = [lines + (optimizers.loss_scale(self) if self.scaled else [])]
        for number, event in enumerate(self.scenario.program):
            lines = between.saved(self) if number in self.conditions.part.saves else []
            lines += between.MOVED if number in self.conditions.moved else []
            lines += between.alone(self, number) if number in self.conditions.alone else []
            lines += between.duplicated(self, number) if number in self.conditions.duplicated else []
            lines += between.swapped(self) if number in self.conditions.swapped else []
            lines += between.dropped(self, number, event) if number in self.conditions.dropped else []
            lines += ["", *(f"# {words}" for words in event_words(self.scenario, number, self.expected))]
            self.calls = "model" if number in self.conditions.around else "wrapped"
            state, looks = partial(optimizers.state, self), number >= self.looks
            after = seen(self.scenario, self.expected, number, state, self.values, looks)
            done = self.event(number, event)
            done += between.metric(self.scenario) if number in self.conditions.metrics else []
            done += between.COPIED if number in self.conditions.copied else []
            lines += self.unless_gone(number, event, done + after) + go_on
            parts.append(lines + (self.equal() if number == 0 and not at_once else []))
        return parts

    def equal(self) -> list[str]:
        """All ranks have rank 0's values now, of which the caller's optimizer may make masters."""
        lines = []
        if self.expected is not None and not self.looks:
            lines = compare("the value", self.values, by_name(self.expected.initial))
        made = self.made_first or self.made_before
        return lines + ([] if made else self.optimizer_of_the_caller())

    def optimizer_of_the_caller(self) -> list[str]:
        """If there is one, and it is the caller who makes it."""
        return optimizers.make(self) if self.optimizes and not self.in_pieces else []

    def unless_gone(self, number: int, event: Event, done: list[str]) -> list[str]:
        """What ranks do that have not run out of micro-batches; those that just have leave the context of the join."""
        gone = self.scenario.gone(number)
        if not gone or not done:
            return done
        leaving = [f"if {self.role} in {gone}:", "    window.close()"] if isinstance(event, Backward) else []
        return [*leaving, f"if {self.role} not in {gone}:", *(f"    {line}" for line in done)]

    def construct(self) -> list[str]:
        """The model, as it is frozen now, and the implementation around it."""
        cap, takes = self.implementation.cap, self.implementation.takes
        given = "".join(f", {k}={v!r}" for k, v in adapter.options(cap, takes, self.scenario).items())
        given += f", {self.implementation.group}=process_group" if self.scenario.outsiders else ""
        lines = ["model = Model(initial[rank])"]
        for index in self.scenario.tensors:
            if (index in self.frozen) == self.scenario.parameters[index].trainable:
                lines += [f"{place(self.scenario, index)}.requires_grad_({index not in self.frozen})"]
        lines += between.differing(self.conditions, self.scenario)
        self.watched.clear()
        lines += self.watch(self.scenario.tensors) if self.raises else []
        if self.in_pieces:
            lines += ["dotted = {p: name for name, p in model.named_parameters()}"]
            lines += ["names = {name: dotted[p] for name, p in tensors().items()}"]
        lines += self.optimizer_of_the_caller() if self.made_before else []
        hooks, before = between.hooked(self.conditions, self.scenario), self.conditions.hooked_before
        wrap = [f"wrapped = {self.implementation.short}(model{given})"]
        wrap += [between.WRAPPED] * bool(self.conditions.differs)
        lines += [*hooks, *wrap] if before else [*wrap, *hooks]
        lines += [*SWITCH, "        module.eval()"] if self.scenario.mode == "eval" else []
        return [*lines, *(optimizers.make(self) if self.in_pieces else [])]

    def watch(self, tensors: Sequence[int]) -> list[str]:
        """The hooks in which the caller may raise, on those of these parameters that are trained and have none yet."""
        new = [index for index in tensors if index not in self.frozen | self.watched]
        self.watched |= {*new}
        return [f"{place(self.scenario, index)}.register_post_accumulate_grad_hook(in_a_hook)" for index in new]

    def event(self, number: int, event: Event) -> list[str]:
        """What the caller does."""
        match event:
            case Backward():
                return self.backward(number, event)
            case Finish():
                finish = self.implementation.finish
                call = f"wrapped.{finish}()" if finish else ""
                done = ["finish()"] if self.implementation.made else [call] * bool(call)
                return done + (between.kept(self, number) if self.conditions.keeps_gradients else [])
            case Unscale():
                return optimizers.unscale(self)
            case Clip():
                most = f"{event.max_norm!r}" + f", {event.norm_type!r}" * (event.norm_type != 2.0)
                if self.in_pieces:
                    return [f"norm = clip({most})"]
                if "clip_grad_norm_" in self.implementation.offers:
                    # A tensor, or a number, which has all digits of float64.
                    read = "torch.as_tensor(norm, dtype=None if torch.is_tensor(norm) else torch.float64)"
                    return [f"norm = wrapped.clip_grad_norm_({most})", f"norm = {read}.reshape(())"]
                return [f"norm = torch.nn.utils.clip_grad_norm_({self.asked}.parameters(), {most})"]
            case Step():
                return optimizers.step(self, event)
            case ZeroGrad():
                return [] if number in self.conditions.zeroed_late else self.zero_grad(event.set_to_none)
            case SetHyperparameters():
                return optimizers.change(self, event)
            case Freeze():
                self.frozen = event.of_frozen(self.frozen)
                named = [place(self.scenario, index) for index in event.parameters]
                lines = [f"{name}.requires_grad_({not event.frozen})" for name in named]
                return lines + (self.watch(event.parameters) if self.raises and not event.frozen else [])
            case Replace():
                return [line for tensor in event.parameters for line in optimizers.replace(self, tensor)]
            case Write():
                written = ", ".join(place(self.scenario, index) for index in event.parameters)
                return [f"for p in [{written}]:", "    p.data.copy_(0 - p.data)"]
            case SaveAndLoad():
                return checkpoints.save_and_load(self, event)
            case Save():
                return checkpoints.save(self)
            case Load():
                return checkpoints.load(self, event)
            case Evaluate():
                return [*self.evaluate(event), *self.read(number)]
            case Join():
                join = f"wrapped.join(divide_by_initial_world_size={event.divide_by == 'world size'})"
                return ["window = contextlib.ExitStack()", f"window.enter_context({join})"]
            case EndJoin():
                return ["window.close()", *self.zero_grad(set_to_none=True)]
            case Raise():
                return self.fail(number, event)

    def backward(self, number: int, event: Backward) -> list[str]:
        """One micro-batch."""
        scenario, batch, ranks = self.scenario, self.scenario.batch(number), range(self.scenario.world_size)
        orders = [[*map(parameter_name, scenario.order(batch, rank))] for rank in ranks]
        shares = [by_forward(coefficients(scenario, rank)[batch], event.forwards) for rank in ranks]
        differentiated = number in self.conditions.differentiated
        halved = number in self.conditions.halved or (differentiated and self.conditions.with_outputs)
        shares = [[*first, [values / (1 + halved) for values in last]] for *first, last in shares]
        *first, last = (by_rank([_named(share) for share in each]) for each in zip(*shares, strict=True))
        lines = [f"orders = {by_rank(orders)}", f"coefficients = {last}"]
        if self.conditions.keeps_gradients and event.synchronize:
            once = event.forwards == event.backwards == event.passes == 1
            lines += [f"kept, used, once = {{}}, orders[{self.role}], {once}"]
        for rank in event.overflow:
            lines += [f"if {self.role} == {rank}:", f"    {self.overflow(scenario.order(batch, rank))}"]
        adds = {"increment": f"{batch * scenario.world_size} + rank + 1"} if scenario.mode == "train" else {}
        run: list[str] = []
        given = "inputs" if differentiated else f"coefficients[{self.role}]"
        order = f"orders[{self.role}]"
        if differentiated and not halved:
            order = between.READ_TOO.format(order, "[::-1]" * (scenario.probe == "linear"))
        loss = self.call(given, order, **adds)
        if differentiated:
            run = between.differentiated(self, loss)
            loss = "(loss + taken)" if halved else "taken"
        elif halved:
            run, loss = between.halved(self, loss)
        if first:
            lines += [f"earlier = [{', '.join(first)}]"]
            run += [f"losses = [{self.call(f'each[{self.role}]', f'orders[{self.role}]')} for each in earlier]"]
        late = scenario.program[number - 1] if number - 1 in self.conditions.zeroed_late else None
        meanwhile = self.zero_grad(late.set_to_none) if isinstance(late, ZeroGrad) else []
        if number in self.conditions.measured:
            meanwhile += [f"# {MEASURES}", *self.evaluate(Evaluate(switch=False))]
        run += self.go_back(event, loss, meanwhile)
        if event.synchronize:
            return [*lines, *run]
        run = [*(["with wrapped.no_sync():", "    pass"] if event.nested else []), *run]
        inside, stays = scenario.stays_in_no_sync(number - 1), scenario.stays_in_no_sync(number)
        if not inside and not stays:
            return [*lines, "with wrapped.no_sync():", *(f"    {line}" for line in run)]
        enter = ["local = contextlib.ExitStack()", "local.enter_context(wrapped.no_sync())"]
        return [*lines, *([] if inside else enter), *run, *([] if stays else ["local.close()"])]

    def go_back(self, event: Backward, loss: str, meanwhile: list[str]) -> list[str]:
        """The backwards, with ``loss`` of the last forward, `losses` of the others, and what comes ``meanwhile``."""
        scale = " * scale" if self.scaled else ""
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
        return [f"yield {loss}" if self.shares_losses else f"{loss}.backward()"]

    def overflow(self, used: Sequence[int]) -> str:
        """What a rank's coefficients become that overflow: all of them, or one."""
        if self.conditions.overflows not in ("first", "last"):
            mine = f"coefficients[{self.role}]"
            return f"{mine} = dict.fromkeys({mine}, {self.conditions.overflows})"
        shapes = self.scenario.parameters
        reached = [index for index in used if shapes[index].count]
        chosen = reached[:1] if self.conditions.overflows == "first" else reached[-1:]
        one = [f'coefficients[{self.role}]["{parameter_name(i)}"]{"[-1]" * len(shapes[i].shape)} = inf' for i in chosen]
        return "".join(one) or "pass"

    def call(self, coefficients: str, order: str, **given: str) -> str:
        """A forward. ``given``: of what `properties.script.head.beside` names."""
        frozen = [i for i in range(len(self.scenario.parameters)) if self.scenario.tensor(i) in self.frozen]
        given["frozen"] = repr([parameter_name(i) for i in frozen if self.scenario.unit(i) is None])
        rest = [given.get(name, default) for name, default in beside(self.scenario).items()]
        inputs = ", ".join([coefficients, order, *rest])
        packed = self.implementation.takes_one and self.calls == "wrapped"
        return f"{self.calls}(({inputs}))" if packed else f"{self.calls}({inputs})"

    def evaluate(self, event: Evaluate) -> list[str]:
        """A forward without autograd, in evaluation mode if it is switched to."""
        inside = "" if event.synchronize else "wrapped.no_sync(), "
        lines = ["read.clear()", *([*SWITCH, "        module.eval()"] if event.switch else [])]
        lines += [f"with {inside}torch.{'inference_mode' if event.inference else 'no_grad'}():"]
        lines += [f"    {self.call('dict.fromkeys(tensors(), 0.0)', 'list(tensors())')}"]
        back = event.switch and self.scenario.mode == "train"
        return [*lines, *([*SWITCH, "        module.train()"] if back else [])]

    def read(self, number: int) -> list[str]:
        """What an evaluation must have read: what the parameters were last. Where it computes in another dtype the
        numbers may be others.
        """
        if self.expected is None:
            told = ['print(f"rank {rank}: the values read are", read, flush=True)']
            return told if number >= self.looks else []
        known = {-1: self.expected.initial, **self.expected.parameters}
        return self.same_as_read(known[max(each for each in known if each < number)])

    def same_as_read(self, values: Sequence[Any]) -> list[str]:
        """What an evaluation has read, where it computes in the dtype of the parameters, is this."""
        same = "{name: p for name, p in read.items() if p.dtype == tensors()[name].dtype}"
        return compare("the value read", same, by_name(values))

    def zero_grad(self, set_to_none: bool) -> list[str]:
        """Gradients dropped, or set to zero."""
        if self.in_pieces or self.implementation.made:
            return [f"zero_grad({set_to_none})"]
        if self.implementation.zero_grad:
            return [f"wrapped.zero_grad(set_to_none={set_to_none})"]
        if set_to_none:
            return [f"for p in {self.asked}.parameters():", "    p.grad = None"]
        return [f"for p in {self.asked}.parameters():", "    if p.grad is not None:", "        p.grad.zero_()"]

    def fail(self, number: int, event: Raise) -> list[str]:
        """The caller's own error, raised and caught."""
        body = ["buffers = copy.deepcopy(dict(model.named_buffers()))"] if self.scenario.buffers else []
        evaluates = event.where == "evaluation"
        body += [*SWITCH, "        module.eval()"] if evaluates else []
        body += [f'fails = "{"module" if evaluates else event.where}"', "try:"]
        if event.where == "no_sync":
            body += ["    with wrapped.no_sync():", "        raise KeyboardInterrupt  # as Ctrl-C does"]
        elif evaluates:
            inside = "" if event.synchronize else "wrapped.no_sync(), "
            call = self.call("dict.fromkeys(tensors(), 0.0)", "list(tensors())", fails="fails")
            body += [f"    with {inside}torch.no_grad():", f"        {call}"]
        else:
            body += ["    trained = [name for name, p in tensors().items() if p.requires_grad][::-1]"]
            scale = " * scale" if self.scaled else ""
            run = f"({self.call('dict.fromkeys(tensors(), nan)', 'trained', fails='fails')}{scale}).backward()"
            body += [f"    {run}"] if event.synchronize else ["    with wrapped.no_sync():", f"        {run}"]
        body += ["except (CallersError, KeyboardInterrupt):", "    pass", 'fails = ""']
        body += [*SWITCH, "        module.train()"] if evaluates and self.scenario.mode == "train" else []
        if self.scenario.buffers:
            body += ["for name, buffer in model.named_buffers():", "    buffer.copy_(buffers[name])"]
        if event.rank is not None:
            body = [f"if {self.role} == {event.rank}:", *(f"    {line}" for line in body)]
        body += self.zero_grad(set_to_none=True) if event.drops_gradients else []
        enter = ["local = contextlib.ExitStack()", "local.enter_context(wrapped.no_sync())"] if event.nested else []
        ends = event.nested and not self.scenario.stays_in_no_sync(number)
        return [*enter, *body, *(["local.close()"] if ends else [])]


def _named(values: Sequence[Any]) -> dict[str, Any]:
    """Coefficients by the names of parameters. One number where there are no elements, as a list would not tell in how
    many dimensions.
    """
    return {
        parameter_name(index): np.asarray(value, dtype=np.float64).tolist() or 0.0 for index, value in enumerate(values)
    }
