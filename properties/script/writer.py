"""The state of the caller's loop while it is written into a script, and lines that several events share."""

from collections.abc import Sequence
from typing import Any

from lockstep.oracle.events import Evaluate, Raise
from lockstep.oracle.expectation import Expectation
from lockstep.oracle.program import Scenario
from lockstep.properties.claims import EQUAL_FROM
from lockstep.properties.conditions import Conditions
from lockstep.properties.implementations import Implementation
from lockstep.properties.naming import parameter_name
from lockstep.properties.ranks.names import Call
from lockstep.properties.script.head import beside, may_hold_pieces, place
from lockstep.properties.script.seen import by_name, compare
from lockstep.properties.script.sharded import GROUPS

# The lines that switch the mode of the wrapper and the model; the wrapper may be no module.
SWITCH = ("for module in (wrapped, model):", "    if isinstance(module, nn.Module):")


class Writer:
    """The state of the script so far, and lines that several events share.

    ``optimizes``: there is an optimizer. ``shares_losses``: the script yields each loss, and its caller runs backward.
    """

    shares_losses = False

    def __init__(
        self,
        implementation: Implementation,
        scenario: Scenario,
        expected: Expectation | None,
        conditions: Conditions,
        optimizes: bool,
    ) -> None:
        self.implementation, self.scenario, self.expected = implementation, scenario, expected
        self.conditions, self.looks = conditions, conditions.part.looks
        # True if the caller's optimizer is made before ranks are equal, or before the model is wrapped.
        made, later = scenario.caller.makes_optimizer, implementation.claims.equal_from != EQUAL_FROM[0]
        self.made_first, self.made_before = made == "after" and later, made == "before"
        self.asked = "wrapped" if scenario.caller.asks_the_wrapper else "model"  # for parameters and state
        self.calls = "wrapped"  # the name by which a forward is called
        self.role = "role" if scenario.roles else "rank"  # the name of the rank whose samples are used
        self.frozen = {index for index, parameter in enumerate(scenario.parameters) if not parameter.trainable}
        self.watched = set[int]()  # the tensors with a hook in which the caller may raise
        self.optimizes = optimizes
        self.raises = scenario.has(Raise)
        self.masters = self.optimizes and scenario.masters
        self.scaled = scenario.loss_scale is not None
        self.in_pieces = may_hold_pieces(implementation)
        self.several = len(scenario.optimizers) > 1  # one for each group
        self.groups = GROUPS[self.several]
        self.values = "values()" if self.in_pieces else "tensors()"

    def watch(self, tensors: Sequence[int]) -> list[str]:
        """The lines that set hooks in which the caller may raise, on the given trained parameters without one."""
        new = [index for index in tensors if index not in self.frozen | self.watched]
        self.watched |= {*new}
        return [f"{place(self.scenario, index)}.register_post_accumulate_grad_hook(in_a_hook)" for index in new]

    def call(self, coefficients: str, order: str, **given: str) -> str:
        """The code of a forward. ``given``: values of arguments named by `properties.script.head.beside`."""
        frozen = [i for i in range(len(self.scenario.parameters)) if self.scenario.tensor(i) in self.frozen]
        given["frozen"] = repr([parameter_name(i) for i in frozen if self.scenario.unit(i) is None])
        rest = [given.get(name, default) for name, default in beside(self.scenario).items()]
        inputs = ", ".join([coefficients, order, *rest])
        packed = self.implementation.takes_one and self.calls == "wrapped"
        return f"{self.calls}(({inputs}))" if packed else f"{self.calls}({inputs})"

    def evaluate(self, event: Evaluate) -> list[str]:
        """The lines of a forward without autograd, in evaluation mode if it switches."""
        inside = "" if event.synchronize else "wrapped.no_sync(), "
        lines = ["read.clear()", *([*SWITCH, "        module.eval()"] if event.switch else [])]
        lines += [f"with {inside}torch.{'inference_mode' if event.inference else 'no_grad'}():"]
        lines += [f"    {self.call('dict.fromkeys(tensors(), 0.0)', 'list(tensors())')}"]
        back = event.switch and self.scenario.mode == "train"
        return [*lines, *([*SWITCH, "        module.train()"] if back else [])]

    def read(self, number: int) -> list[str]:
        """The lines that compare the values read by an evaluation with the last parameters.

        Values in another dtype than the parameters' are not compared.
        """
        if self.expected is None:
            told = ['print(f"rank {rank}: the values read are", read, flush=True)']
            return told if number >= self.looks else []
        known = {-1: self.expected.initial, **self.expected.parameters}
        return self.same_as_read(known[max(each for each in known if each < number)])

    def same_as_read(self, values: Sequence[Any]) -> list[str]:
        """The lines that compare the values read by an evaluation with these, if dtypes agree."""
        same = "{name: p for name, p in read.items() if p.dtype == tensors()[name].dtype}"
        return compare("the value read", same, by_name(values))

    def tell(self, call: Call | None) -> list[str]:
        """The call of a method of the implementation, or of the function that it is; empty if there is none."""
        of = self.implementation
        return [f"{of.short if of.after else f'wrapped.{call.name}'}({call.given_in_a_script})"] if call else []

    def zero_grad(self, set_to_none: bool) -> list[str]:
        """The lines that set gradients to None or to zero."""
        if self.in_pieces or self.implementation.made or (self.implementation.plain and self.optimizes):
            return [f"zero_grad({set_to_none})"]
        if self.implementation.zero_grad:
            return [f"wrapped.zero_grad(set_to_none={set_to_none})"]
        if set_to_none:
            return [f"for p in {self.asked}.parameters():", "    p.grad = None"]
        return [f"for p in {self.asked}.parameters():", "    if p.grad is not None:", "        p.grad.zero_()"]


def finishes(writer: Writer) -> list[str]:
    """The call that tells the implementation that backward has ended, if there is one."""
    return ["finish()"] if writer.implementation.made else writer.tell(writer.implementation.finish)
