"""Definitions of a script if a function makes the wrapper, whose methods are then known only at run time."""

from lockstep.properties.ranks.names import ARGUMENTS, FINISH_NAMES, IN_A_SCRIPT

_KNOWN = {name: kind for kind, names in ARGUMENTS.items() for name in names}
FINISH = f"""

def finish():
    import inspect

    values = {{{", ".join(f'"{kind}": {code}' for kind, code in IN_A_SCRIPT.items())}}}
    known = {_KNOWN}
    for name in {FINISH_NAMES}:
        method = getattr(wrapped, name, None)
        takes = inspect.signature(method).parameters.values() if callable(method) else ()
        needs = [each.name for each in takes if each.default is each.empty and each.kind < each.VAR_POSITIONAL]
        if callable(method) and known.keys() >= {{*needs}}:
            return method(*(values[known[each]] for each in needs))
"""

ZERO_GRAD = """

def zero_grad(set_to_none):
    if getattr(type(wrapped), "zero_grad", nn.Module.zero_grad) is not nn.Module.zero_grad:
        wrapped.zero_grad(set_to_none=set_to_none)
    else:
        model.zero_grad(set_to_none=set_to_none)
"""
