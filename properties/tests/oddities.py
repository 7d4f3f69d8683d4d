"""Odd things that somebody may hand over as a wrapper. Each is to end in a verdict, or in one line."""

import abc
import dataclasses
import enum
import functools
import threading
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import nn

from lockstep.properties.tests.shapes import Plain, average, begin_alike


def a_generator(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the wrapper, and returns none."""
    yield Plain(module)


async def a_coroutine(module: nn.Module) -> nn.Module:
    return Plain(module)


class YieldsInForward(Plain):
    """What forward gives is a generator."""

    def forward(self, *inputs: Any, **named: Any) -> Generator[Any, None, None]:
        yield self.module(*inputs, **named)


class Slots:
    """No module, and no dictionary."""

    __slots__ = ("module",)

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        begin_alike(module)

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def finish(self) -> None:
        average(self.module.parameters())


class Meta(type):
    """Makes an object of another class."""

    def __call__(cls, *args: Any) -> Any:
        return Slots(*args)


class OfAMetaclass(metaclass=Meta):
    """Its signature is nobody's."""


class RaisingMeta(type):
    """Whoever asks its classes for what they do not have gets another error than usual."""

    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class OfARaisingMetaclass(Slots, metaclass=RaisingMeta):
    __slots__ = ()


@dataclasses.dataclass
class ADataclass:
    """A dataclass, which compares by value, and so has no hash."""

    module: nn.Module
    scale: float = 1.0

    def __post_init__(self) -> None:
        begin_alike(self.module)

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)

    def sync(self) -> None:
        average(self.module.parameters())


@dataclasses.dataclass(eq=False)
class AModuleThatIsADataclass(nn.Module):
    """Assigns a module before nn.Module is ready for it."""

    module: nn.Module


class ANamedTuple(NamedTuple):
    module: nn.Module

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)


class WithoutModule:
    """No nn.Module."""

    def __init__(self, module: nn.Module) -> None:
        self.inner = module
        begin_alike(module)

    def __call__(self, *inputs: Any) -> Any:
        return self.inner(*inputs)

    def all_reduce_grads(self) -> None:
        average(self.inner.parameters())


a_partial = functools.partial(WithoutModule)
a_partial_that_needs_more: Any = functools.partial(WithoutModule, group=None)  # type: ignore[call-arg]
a_lambda = lambda module: WithoutModule(module)  # noqa: E731


class OnAnotherThread(Plain):
    """Reduces from a thread of its own, out of hooks."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.threads: list[threading.Thread] = []
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self.start)

    def start(self, parameter: nn.Parameter) -> None:
        self.threads.append(threading.Thread(target=average, args=([parameter],)))
        self.threads[-1].start()

    def finish_gradient_synchronization(self) -> None:
        for thread in self.threads:
            thread.join()
        self.threads.clear()


class DiesOnAnotherThread(Plain):
    """A thread of its own raises, and nobody hears of it."""

    def finish(self) -> None:
        thread = threading.Thread(target=self.missing)
        thread.start()
        thread.join()

    def missing(self) -> None:
        raise KeyError("nobody")


class TakesTooMuch:
    def __init__(self, module: nn.Module, device: str, rank: int) -> None: ...


class TakesItByAnotherName:
    def __init__(self, *, wrapped: nn.Module) -> None: ...


class HasAWrongForward(Plain):
    def forward(self) -> None: ...


class HasAKeywordOnlyForward(Plain):
    def forward(self, *, x: Any) -> Any:
        return self.module(x)


class GivesATuple(Plain):
    def forward(self, *inputs: Any) -> Any:
        return self.module(*inputs), None


class PropertiesThatRaise(Plain):
    """Every name that is asked for may raise."""

    def _raise(self) -> Any:
        raise RuntimeError("not before it is trained")

    finish_gradient_synchronization = property(_raise)
    no_sync = property(_raise)
    zero_grad = property(_raise)
    clip_grad_norm_ = property(_raise)
    full_parameters = property(_raise)
    make_optimizer = property(_raise)

    def finish(self) -> None:
        self.average()


class AttributesThatRaise:
    """Anything that it does not have raises."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"what is {name}?")

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)


class HasEverything:
    """Anything that it is asked for is there, and does nothing."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: None

    def __call__(self, *inputs: Any) -> Any:
        return self.module(*inputs)


class ClaimsThatRaise(Plain):
    @property
    def claims(self) -> Any:
        raise RuntimeError("none")


class ClaimsAnEnum(Plain):
    claims = {"unused": enum.Enum("Unused", ["zero"])}


class HasNoName(Plain):
    """Told by nothing."""

    def __repr__(self) -> str:
        raise RuntimeError("nobody")


class Abstract(abc.ABC):
    @abc.abstractmethod
    def __call__(self, *inputs: Any) -> Any: ...


class AProtocol(Protocol):
    module: nn.Module


class Exits:
    def __init__(self, module: nn.Module) -> None:
        raise SystemExit(3)


class Interrupts(Plain):
    def finish(self) -> None:
        raise KeyboardInterrupt


class RaisesAnErrorWithoutWords(Plain):
    def finish(self) -> None:
        class Silent(Exception):
            def __str__(self) -> str:
                raise RuntimeError

        raise Silent


class ChangesItsClass(Plain):
    """Becomes something else when it is made."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.__class__ = GivesATuple


class Frozen(WithoutModule):
    """Takes no attribute once it is made."""

    def __init__(self, module: nn.Module) -> None:
        object.__setattr__(self, "inner", module)

    def __setattr__(self, name: str, value: object) -> None:
        raise dataclasses.FrozenInstanceError(name)


class Recurses(Plain):
    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self(*inputs, **named)


class DeletesItsModule(Plain):
    def finish(self) -> None:
        del self.module


class EndsTheGroup(Plain):
    def finish(self) -> None:
        self.average()
        dist.destroy_process_group()


class ReturnsNoLoss(Plain):
    def forward(self, *inputs: Any, **named: Any) -> Any:
        return None


class DetachesTheLoss(Plain):
    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.module(*inputs, **named).detach()


an_instance_of_a_module = nn.Linear(1, 1)


class AnEnum(enum.Enum):
    module = 1


def an_inference_tensor(module: nn.Module) -> nn.Module:
    with torch.inference_mode():
        for parameter in module.parameters():
            parameter.data = parameter.data * 1
    return module


def deletes_parameters(module: nn.Module) -> nn.Module:
    for each in module.modules():
        each._parameters.clear()
    return Plain(module)


NAMES = (
    *("a_generator", "a_coroutine", "YieldsInForward", "Slots", "OfAMetaclass", "OfARaisingMetaclass", "ADataclass"),
    *("AModuleThatIsADataclass", "ANamedTuple", "WithoutModule", "a_partial", "a_partial_that_needs_more", "a_lambda"),
    *("OnAnotherThread", "DiesOnAnotherThread", "TakesTooMuch", "TakesItByAnotherName", "HasAWrongForward"),
    *("HasAKeywordOnlyForward", "GivesATuple", "PropertiesThatRaise", "AttributesThatRaise", "HasEverything"),
    *("ClaimsThatRaise", "ClaimsAnEnum", "HasNoName", "Abstract", "AProtocol", "Exits", "Interrupts"),
    *("RaisesAnErrorWithoutWords", "ChangesItsClass", "Frozen", "Recurses", "DeletesItsModule", "EndsTheGroup"),
    *("ReturnsNoLoss", "DetachesTheLoss", "an_instance_of_a_module", "AnEnum", "an_inference_tensor"),
    "deletes_parameters",
)
