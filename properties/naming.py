"""How parameters are called when people read of them, and in the models."""

from oracle.program import Scenario


def parameter_name(index: int) -> str:
    """a, b, c, ... for the parameters of a scenario."""
    return chr(ord("a") + index) if index < 26 else f"p{index}"


def element_name(scenario: Scenario, parameter: int, element: tuple[int, ...]) -> str:
    """a[0], b[1,2], or a alone for a parameter of no dimensions."""
    inside = ",".join(map(str, element))
    return parameter_name(parameter) + (f"[{inside}]" if inside else "")
