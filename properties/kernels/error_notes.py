"""A call of a kernel, told in words where it raises: an error of Triton's alone seldom says what it was given."""

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

FEW = 4  # tensors of a list that are told


class NamesItsArguments:
    """A namespace of kernels; what one raises has a note that says which it was, and with which arguments."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The kernel."""
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
    """By name where there is one, tensors by dtype and shape."""
    names: list[str] = []
    with contextlib.suppress(TypeError, ValueError):
        names = list(inspect.signature(function).parameters)[: len(args)]
    placed = [f"{name}={short(value)}" for name, value in zip(names, args, strict=False)]
    rest = [short(value) for value in args[len(names) :]]
    return ", ".join([*placed, *rest, *(f"{name}={short(value)}" for name, value in named.items())])


def short(value: Any) -> str:
    """A value in a few words, without asking a device that may be lost."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    if isinstance(value, list):
        more = [f"{len(value) - FEW} more"] if len(value) > FEW else []
        return f"[{', '.join([*map(short, value[:FEW]), *more])}]"
    return repr(value)
