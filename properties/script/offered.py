"""What a script defines where a function makes the wrapper: its methods are known only once it is made."""

from lockstep.properties.ranks.adapter import FINISH_NAMES

FINISH = f"""

def finish():
    for name in {FINISH_NAMES}:
        if callable(getattr(wrapped, name, None)):
            return getattr(wrapped, name)()
"""

ZERO_GRAD = """

def zero_grad(set_to_none):
    if getattr(type(wrapped), "zero_grad", nn.Module.zero_grad) is not nn.Module.zero_grad:
        wrapped.zero_grad(set_to_none=set_to_none)
    else:
        model.zero_grad(set_to_none=set_to_none)
"""
