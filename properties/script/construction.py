"""Construct the model and its wrapper, in a script."""

from lockstep.properties.ranks import adapter
from lockstep.properties.script import optimizers, throughout
from lockstep.properties.script.head import place
from lockstep.properties.script.seen import by_name, compare
from lockstep.properties.script.writer import SWITCH, Writer


def construct(writer: Writer) -> list[str]:
    """The lines that make the model with its present frozen parameters, and the implementation around it."""
    cap, takes = writer.implementation.cap, writer.implementation.takes
    given = "".join(f", {k}={v!r}" for k, v in adapter.options(cap, takes, writer.scenario).items())
    given += f", {writer.implementation.group}=process_group" if writer.scenario.outsiders else ""
    lines = ["model = Model(initial[rank])"]
    for index in writer.scenario.tensors:
        if (index in writer.frozen) == writer.scenario.parameters[index].trainable:
            lines += [f"{place(writer.scenario, index)}.requires_grad_({index not in writer.frozen})"]
    lines += throughout.differing(writer.scenario)
    writer.watched.clear()
    lines += writer.watch(writer.scenario.tensors) if writer.raises else []
    if writer.in_pieces:
        lines += ["dotted = {p: name for name, p in model.named_parameters()}"]
        lines += ["names = {name: dotted[p] for name, p in tensors().items()}"]
    lines += optimizer_of_the_caller(writer) if writer.made_before else []
    hooks, before = throughout.hooked(writer.scenario), writer.scenario.caller.hooked_before
    wrap = [f"wrapped = {writer.implementation.short}(model{given})"]
    if writer.implementation.plain:
        wrap = ["wrapped = model", "begin_alike()"]
    if writer.implementation.after:
        wrap = ["for tensor in model.state_dict().values():", "    dist.broadcast(tensor, 0)", "wrapped = model"]
    wrap += [throughout.WRAPPED] * (writer.scenario.differs is not None)
    lines += [*hooks, *wrap] if before else [*wrap, *hooks]
    lines += throughout.KEEPS if writer.scenario.caller.keeps_gradients else []
    lines += [*SWITCH, "        module.eval()"] if writer.scenario.mode == "eval" else []
    return [*lines, *(optimizers.make(writer) if writer.in_pieces else [])]


def equal(writer: Writer) -> list[str]:
    """The lines at the point where all ranks have rank 0's values.

    The caller's optimizer may then make master weights.
    """
    lines = []
    if writer.expected is not None and not writer.looks:
        lines = compare("the value", writer.values, by_name(writer.expected.initial))
    made = writer.made_first or writer.made_before
    return lines + ([] if made else optimizer_of_the_caller(writer))


def optimizer_of_the_caller(writer: Writer) -> list[str]:
    """The lines that make the caller's optimizer, if there is one."""
    return optimizers.make(writer) if writer.optimizes and not writer.in_pieces else []
