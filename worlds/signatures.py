"""The signatures of torch's `ProcessGroup`: C++ overloads most of its methods, and here each has only one form.

That form, which `torch.distributed` and C++ use, takes lists of tensors and an object of options. The form that people
write has one level of lists less. In place of the options it takes those that it needs: ``op``, ``root``, ``timeout``.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch

Method = TypeVar("Method", bound=Callable[..., Any])

# What the methods of torch 2.11 to 2.14 call their first argument, the second, and so on.
_KEYWORDS = (
    ("tensors", "tensor", "outputs", "output", "output_tensors", "output_tensor", "outputTensor", "output_lists"),
    ("inputs", "input", "input_tensors", "input_tensor", "inputTensor", "input_list"),
    ("output_split_sizes",),
    ("input_split_sizes",),
)
_OPTIONS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
_LEVELS = {Sequence[torch.Tensor]: 1, Sequence[Sequence[torch.Tensor]]: 2}


def overloaded(options: type, *parts: str) -> Callable[[Method], Method]:
    """Lets a method ``(self, tensors, ..., opts)`` be called in both forms, or without options.

    ``options``: their class; ``parts``: which of them the other form has, in its order. The method's annotations tell
    how its tensors are nested. Raises TypeError, as pybind does, where arguments fit neither form.
    """

    def decorate(method: Method) -> Method:
        levels = [_LEVELS.get(each.annotation, 0) for each in inspect.signature(method).parameters.values()][1:-1]
        usual = len(levels) + 1

        @functools.wraps(method)
        def call(group: Any, *given: Any, **named: Any) -> Any:
            if len(given) == usual and not named and isinstance(given[-1], options):
                return method(group, *given)
            tensors, rest = list(given[: len(levels)]), given[len(levels) :]
            for keywords in _KEYWORDS[len(tensors) : len(levels)]:
                tensors.append(_taken(method, named, keywords))
            told = dict(zip(parts, rest, strict=False)) | named
            if len(rest) == 1 and isinstance(rest[0], options):
                told = {"opts": rest[0]} | named
            elif len(rest) > len(parts):
                raise TypeError(f"{method.__name__}() takes no more than {', '.join(parts)} after its tensors")
            opts = told.pop("opts", None) or options()
            for part, value in told.items():
                if part not in parts:
                    raise TypeError(f"{method.__name__}() got an unexpected argument {part!r}")
                if value is not None:
                    setattr(opts, _OPTIONS[part], value)
            return method(group, *map(_nested, tensors, levels), opts)

        _not_to_be_compiled(call)
        return cast(Method, call)

    return decorate


def _not_to_be_compiled(function: Any) -> None:
    """Nor anything that it calls, where what torch.compile compiles calls it: as `torch.compiler.disable` does, which
    would import all of the compiler.
    """
    dynamo = torch._C._dynamo.eval_frame
    skip = dynamo._FrameAction.SKIP
    dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))


def _taken(method: Method, named: dict[str, Any], keywords: Sequence[str]) -> Any:
    for keyword in keywords:
        if keyword in named:
            return named.pop(keyword)
    raise TypeError(f"{method.__name__}() lacks its argument {keywords[0]!r}")


def _nested(tensors: Any, levels: int) -> Any:
    """The tensors in lists of so many levels, of which the other form leaves one out."""
    innermost, found = tensors, 0
    while found < levels and not isinstance(innermost, torch.Tensor):
        if not innermost:
            return tensors  # a root's alone
        innermost, found = innermost[0], found + 1
    return tensors if found == levels else [tensors]
