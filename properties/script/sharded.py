"""Definitions of a script for an implementation that may shard tensors: the methods of `Sharded`.

As in `properties.ranks.training`, the caller does what the implementation has no method for.
"""

from lockstep.properties.script.layers import WHOLE
from lockstep.properties.script.offered import ZERO_GRAD

_DEFINITIONS = (
    ZERO_GRAD
    + '''
def is_handle(value):
    """Of a save that ends later."""
    return not isinstance(value, dict) and (hasattr(value, "result") or hasattr(value, "wait"))


def kept(value):
    return value if is_handle(value) else copy.deepcopy(value)


def ended(value):
    if not is_handle(value):
        return value
    return value.result() if hasattr(value, "result") else value.wait()


def values():
    if not hasattr(wrapped, "full_parameters"):
        return {whole}(tensors())
    full = ended(wrapped.full_parameters())
    return {name: full[dotted] for name, dotted in names.items()}


def gradients():
    if not hasattr(wrapped, "full_gradients"):
        return {whole}({name: p.grad for name, p in tensors().items()})
    full = wrapped.full_gradients()
    return {name: full[dotted] for name, dotted in names.items()}


def state(name):
    """What the optimizer holds of a parameter."""
    if not hasattr(wrapped, "full_optimizer_state"):
        return {state}
    held = ended(wrapped.full_optimizer_state()).get(names[name], {})
    return {key: torch.as_tensor(value) for key, value in held.items()}


def make_optimizer(kind, groups, **defaults):
    groups = [{**group, "names": [names[name] for name in group["names"]]} for group in groups]
    if hasattr(wrapped, "make_optimizer"):
        return wrapped.make_optimizer(kind, groups, **defaults)
    named = dict(model.named_parameters())
    return kind([{**group, "params": [named[name] for name in group.pop("names")]} for group in groups], **defaults)


def clip(*how):
    if not hasattr(wrapped, "clip_grad_norm_"):
        return torch.nn.utils.clip_grad_norm_(model.parameters(), *how)
    norm = wrapped.clip_grad_norm_(*how)
    norm = torch.as_tensor(norm, dtype=None if torch.is_tensor(norm) else torch.float64)
    return norm.reshape(()) if norm.numel() == 1 else norm


def unscale(scale):
    """Whether all is finite."""
    if hasattr(wrapped, "unscale_"):
        return wrapped.unscale_(scale)
    found = [p.grad for p in model.parameters() if p.grad is not None]
    for gradient in found:
        gradient /= scale
    return all(bool(gradient.isfinite().all()) for gradient in found)


def options():
    return [{key: group[key] for key in group if key not in ("params", "names")} for group in {groups}]
'''
)

# The code for all groups, and for the state of a parameter; second items: each group has its own optimizer.
GROUPS = ("optimizer.param_groups", "[group for each in optimizers.values() for group in each.param_groups]")
_STATE = (
    "optimizer.state[tensors()[name]]",
    "next((each.state[p] for p in [tensors()[name]] for each in optimizers.values() if p in each.state), {})",
)


def definitions_of_pieces(several: bool, in_layers: bool) -> str:
    """The definitions.

    ``several``: each group has its own optimizer. ``in_layers``: the script must assemble the pieces.
    """
    own = _DEFINITIONS.replace("{state}", _STATE[several]).replace("{groups}", GROUPS[several])
    return WHOLE + own.replace("{whole}", "whole_of_each") if in_layers else own.replace("{whole}", "dict")
