"""What is saved and loaded in a script: whole tensors under the words of `Sharded`, else torch's own state dicts."""

from typing import TYPE_CHECKING

from lockstep.oracle import hyperparameters
from lockstep.oracle.events import Load, SaveAndLoad
from lockstep.properties.script import optimizers

if TYPE_CHECKING:
    from lockstep.properties.script.events import Writer


def save(writer: "Writer", everything: bool = True) -> list[str]:
    """The state of everything, or the weights alone."""
    if writer.in_pieces:
        state = "(wrapped.full_optimizer_state(), options())"
        lines = ["saved = copy.deepcopy((wrapped.full_parameters(), dict(model.named_buffers())))"]
        lines += [f"saved_state, saved_options = copy.deepcopy({state})"] * everything
    else:
        lines = [f"saved = copy.deepcopy({writer.asked}.state_dict())"]
        state = "optimizer.state_dict()"
        state = "{n: each.state_dict() for n, each in optimizers.items()}" if writer.several else state
        lines += [f"saved_optimizer = copy.deepcopy({state})"] * everything
        lines += ["saved_masters = copy.deepcopy(masters)"] * (everything and writer.masters)
    return lines + ["saved_scale = scale, steps"] * (everything and writer.scaled)


def load(writer: "Writer", event: Load) -> list[str]:
    """What was saved, or the weights of it, into what is there."""
    afresh = _options(writer, _at_the_start(writer)) if writer.in_pieces and not event.optimizer else []
    return [*writer.zero_grad(set_to_none=True), *_take_up(writer, event.optimizer), *afresh]


def save_and_load(writer: "Writer", event: SaveAndLoad) -> list[str]:
    """Everything, or the weights alone, into a new model."""
    made = writer.in_pieces or writer.made_before
    optimizer = optimizers.make(writer) if event.optimizer and not made else []
    lines = [*save(writer, event.optimizer), *writer.construct(), *optimizer]
    return [*lines, *_take_up(writer, event.optimizer)]


def _take_up(writer: "Writer", everything: bool) -> list[str]:
    """The rest begins afresh; masters are made from the weights that were loaded."""
    if writer.in_pieces:
        state = "copy.deepcopy(saved_state)" if everything else "None"
        lines = [f"wrapped.load_full(copy.deepcopy(saved[0]), {state})"]
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


def _options(writer: "Writer", told: str) -> list[str]:
    return [f"for group, told in zip({writer.groups}, {told}):", "    group.update(told)"]


def _at_the_start(writer: "Writer") -> str:
    """Of all groups, or, where each has an optimizer, of those that have parameters."""
    settings = [*hyperparameters.at_the_start(writer.scenario)]
    if writer.several:
        settings = [settings[number] for (number,) in writer.scenario.optimizers]
    return repr([hyperparameters.options(each) for each in settings])
