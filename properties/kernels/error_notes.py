"""Add the call of a kernel to the errors that it raises, because Triton's errors seldom name the arguments."""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

FEW = 4  # tensors of a list that are shown


class NamesItsArguments:
    """A namespace of kernels. An error that a kernel raises gets a note with its name and arguments."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The kernel of that name."""
        function = getattr(self._kernels, name)

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            try:
                return function(*args, **named)
            except Exception as error:
                error.add_note(f"{name}({arguments(function, args, named)})")
                raise

        return call


def arguments(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> str:
    """The arguments by name if they have one, with tensors as dtype and shape."""
    names: list[str] = []
    with contextlib.suppress(TypeError, ValueError):
        names = list(inspect.signature(function).parameters)[: len(args)]
    placed = [f"{name}={short(value)}" for name, value in zip(names, args, strict=False)]
    rest = [short(value) for value in args[len(names) :]]
    return ", ".join([*placed, *rest, *(f"{name}={short(value)}" for name, value in named.items())])


def short(value: Any) -> str:
    """A value in a few words, without access to a device that may be lost."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, list):
        more = [f"{len(value) - FEW} more"] if len(value) > FEW else []
        return f"[{', '.join([*map(short, value[:FEW]), *more])}]"
    return repr(value)
