"""What is saved and loaded in a script: whole tensors under the words of `Sharded`, else torch's own state dicts."""

from typing import TYPE_CHECKING

from oracle import hyperparameters
from oracle.events import Load, SaveAndLoad
from properties.ranks.training import options

if TYPE_CHECKING:
    from properties.script.events import Writer

_WEIGHTS = "saved = copy.deepcopy(model.state_dict())"


def save(writer: "Writer") -> list[str]:
    """The state of everything."""
    kept = ["saved_scale = scale, steps"] if writer.scaled else []
    if writer.in_pieces:
        whole = "wrapped.full_optimizer_state(), options()"
        return [*_weights_in_pieces(), f"saved_state, saved_options = copy.deepcopy(({whole}))", *kept]
    masters = ["saved_masters = copy.deepcopy(masters)"] if writer.masters else []
    return [_WEIGHTS, "saved_optimizer = copy.deepcopy(optimizer.state_dict())", *masters, *kept]


def load(writer: "Writer", event: Load) -> list[str]:
    """What was saved, or the weights of it, into what is there."""
    if writer.in_pieces:
        state = "copy.deepcopy(saved_state)" if event.optimizer else "None"
        lines = ["zero_grad(True)", f"wrapped.load_full(copy.deepcopy(saved[0]), {state})", *_buffers_in_pieces()]
        lines += _options("saved_options" if event.optimizer else _at_the_start(writer))
    else:
        lines = [*writer.zero_grad(set_to_none=True), "model.load_state_dict(saved)"]
        lines += _optimizer(writer, "copy.deepcopy(saved_optimizer)") if event.optimizer else writer.optimizer()
    if writer.scaled:
        back = ["scale, steps = saved_scale", "unscaled = skip = False"]
        lines += back if event.optimizer else writer.loss_scale()
    return lines


def save_and_load(writer: "Writer", event: SaveAndLoad) -> list[str]:
    """Everything, or the weights alone, into a new model."""
    if writer.in_pieces:
        state = "(wrapped.full_optimizer_state(), options())" if event.optimizer else "(None, None)"
        lines = [*_weights_in_pieces(), f"saved_state, saved_options = copy.deepcopy({state})", *writer.construct()]
        lines += ["wrapped.load_full(saved[0], saved_state)", *_buffers_in_pieces(), *_options("saved_options or []")]
    else:
        kept = ["saved_optimizer = copy.deepcopy(optimizer.state_dict())"] if event.optimizer else []
        masters = ["saved_masters = copy.deepcopy(masters)"] if event.optimizer and writer.masters else []
        lines = [_WEIGHTS, *kept, *masters, *writer.construct(), *writer.optimizer(), "model.load_state_dict(saved)"]
        if event.optimizer:
            lines += _optimizer(writer, "saved_optimizer")
        elif writer.masters:
            lines += writer.optimizer()  # masters are made from the weights that were loaded, so once more
    if writer.scaled:
        lines += ["unscaled = skip = False"] if event.optimizer else writer.loss_scale()
    return lines


def _optimizer(writer: "Writer", saved: str) -> list[str]:
    lines = []
    if writer.masters:
        lines += ["with torch.no_grad():", "    for name, master in masters.items():"]
        lines += ["        master.copy_(saved_masters[name])"]
    return [*lines, f"optimizer.load_state_dict({saved})"]


def _weights_in_pieces() -> list[str]:
    return ["saved = copy.deepcopy((wrapped.full_parameters(), dict(model.named_buffers())))"]


def _buffers_in_pieces() -> list[str]:
    return ["for name, buffer in model.named_buffers():", "    buffer.copy_(saved[1][name])"]


def _options(told: str) -> list[str]:
    return [f"for group, told in zip(optimizer.param_groups, {told}):", "    group.update(told)"]


def _at_the_start(writer: "Writer") -> str:
    return repr([options(settings) for settings in hyperparameters.at_the_start(writer.scenario)])
