"""Saving and loading in a script: full tensors by the methods of `Sharded`, else torch's own state dicts."""

from lockstep.oracle import hyperparameters
from lockstep.properties.naming import SAVES
from lockstep.properties.script import optimizers, stepped
from lockstep.properties.script.writer import Writer


def save(writer: Writer, everything: bool = True) -> list[str]:
    """The lines that save everything, or the weights alone."""
    if writer.in_pieces:
        state = "kept(wrapped.full_optimizer_state()), copy.deepcopy(options())"
        lines = ["saved = kept(wrapped.full_parameters()), copy.deepcopy(dict(model.named_buffers()))"]
        lines += [f"saved_state, saved_options = {state}"] * everything
    else:
        lines = [f"saved = copy.deepcopy({writer.asked}.state_dict())"]
        state = stepped.state_of(writer, "optimizer")
        each = stepped.state_of(writer, "each")
        state = f"{{n: {each} for n, each in optimizers.items()}}" if writer.several else state
        lines += [f"saved_optimizer = copy.deepcopy({state})"] * everything
        lines += ["saved_masters = copy.deepcopy(masters)"] * (everything and writer.masters)
    return lines + ["saved_scale = scale, steps"] * (everything and writer.scaled)


def take_up(writer: Writer, everything: bool) -> list[str]:
    """The lines that load everything, or the weights alone.

    In the latter case the rest begins afresh, and master weights are made from the loaded ones.
    """
    if writer.in_pieces:
        state = "copy.deepcopy(ended(saved_state))" if everything else "None"
        lines = [f"wrapped.load_full(copy.deepcopy(ended(saved[0])), {state})"]
        lines += ["for name, buffer in model.named_buffers():", "    buffer.copy_(saved[1][name])"]
        lines += _options(writer, "saved_options") if everything else []
    else:
        lines = [f"{writer.asked}.load_state_dict(saved)"]
        if everything and writer.masters:
            lines += ["with torch.no_grad():", "    for name, master in masters.items():"]
            lines += ["        master.copy_(saved_masters[name])"]
        load = ["optimizer.load_state_dict(copy.deepcopy(saved_optimizer))"]
        if writer.several:
            load = ["for n, each in optimizers.items():", "    each.load_state_dict(copy.deepcopy(saved_optimizer[n]))"]
        lines += load if everything else optimizers.make(writer)
    if writer.scaled:
        lines += (
            ["scale, steps = saved_scale", "unscaled = skip = False"] if everything else optimizers.loss_scale(writer)
        )
    return lines


def _options(writer: Writer, told: str) -> list[str]:
    return [f"for group, told in zip({writer.groups}, {told}):", "    group.update(told)"]


def at_the_start(writer: Writer) -> list[str]:
    """The lines that reset the options of all groups or, if each has its own optimizer, of those with parameters."""
    settings = [*hyperparameters.at_the_start(writer.scenario)]
    if writer.several:
        settings = [settings[number] for (number,) in writer.scenario.optimizers]
    return _options(writer, repr([hyperparameters.options(each) for each in settings]))


def for_nothing(writer: Writer) -> list[str]:
    """The lines that save everything without using it."""
    return ["", f"# {SAVES}", *save(writer)]
