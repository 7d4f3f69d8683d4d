"""The base of all plain data of the oracle."""

from dataclasses import MISSING, fields


class Short:
    """A repr that leaves out what has its default, and still evaluates back: what is positional comes first."""

    def __repr__(self) -> str:
        positional, named = [], []
        for item in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, item.name)
            told = 'float("inf")' if value == float("inf") else repr(value)
            if item.default is MISSING:
                positional.append(told)
            elif value != item.default:
                named.append(f"{item.name}={told}")
        return f"{type(self).__name__}({', '.join([*positional, *named])})"


def is_whole(number: object, least: int) -> bool:
    """True for an integer of at least that. A bool is not one."""
    return type(number) is int and number >= least
