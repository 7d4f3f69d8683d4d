"""One claim: its promise, its possible values, and its value if it is not declared."""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The shape of an implementation, seen from outside. None: not known, because a function makes the wrapper.

    - ``zeroes_otherwise``: gradients may have to be zeroed by a method that Lockstep does not call.
    - ``finishes``: a method ends the synchronization.
    - ``whole``: it declares no ZeRO stage that shards anything.
    - ``shards``: on two ranks, each holds a piece of a plain layer's parameters; ``plain_layers``: and full parameters
      of any other module.
    - ``is_optimizer``: it takes parameters and the class of an optimizer. Seen of that: ``averages_in_step``,
      ``takes_closures``, ``adds_groups``, ``schedules`` (works with torch's schedulers), ``saved_by``, and
      ``of_one_kind`` (takes no class, but has its own update rule).
    - ``spares_ranks``: it declares a number of parameters for each rank.
    - ``is_sampler``: it deals samples. Seen of that: ``takes_batch``, ``takes_shuffle``, ``takes_drop_last``,
      ``resumes`` and ``gathers``.
    - ``is_loop``: it is a training loop. Seen of that: ``takes_scheduler`` and ``takes_max_norm``.
    - ``has_experts``: it takes a process group for each parameter. Seen of that: ``clips`` and ``saves_all``.
    """

    has_no_sync: bool | None
    takes_cap: bool
    has_join: bool | None = False
    makes_optimizer: bool | None = False
    zeroes_otherwise: bool = False
    takes_group: bool = False
    takes_replicas: bool = False
    takes_keywords: bool = False
    like_its_model: bool = False
    finishes: bool | None = True
    whole: bool = True
    shards: bool = False
    plain_layers: bool = False
    is_optimizer: bool = False
    averages_in_step: bool = False
    takes_closures: bool = False
    adds_groups: bool = False
    schedules: bool = False
    saved_by: str | None = None
    of_one_kind: bool = False
    spares_ranks: bool = False
    is_sampler: bool = False
    takes_batch: bool = False
    takes_shuffle: bool = False
    takes_drop_last: bool = False
    resumes: bool = False
    gathers: bool = False
    is_loop: bool = False
    takes_scheduler: bool = False
    takes_max_norm: bool = False
    has_experts: bool = False
    clips: bool = False
    saves_all: bool = False

    @property
    def leaves_weights(self) -> bool:
        """True if parameters and optimizer belong to the caller."""
        return self.makes_optimizer is False and self.whole


@dataclass(frozen=True)
class Claim:
    """The declaration of a claim, beside its name, type and default.

    - ``says``: the promise in a sentence.
    - ``choices``: its values, with or without the default; empty for a number.
    - ``some``: the value is a tuple of some of the choices or, without choices, of names of classes.
    - ``probed``: the values that are tried for code that declares nothing.
    - ``inferred``: its value if it is not declared.
    - ``excluded``: the reason why its value contradicts the other claims, in words; empty if it does not.
    - ``lacking``: what an implementation with that shape lacks for it, in words; empty if nothing.
    """

    says: str
    choices: tuple[Any, ...] = ()
    some: bool = False
    probed: tuple[Any, ...] = ()
    inferred: Callable[[Shape], Any] | None = None
    excluded: Callable[[Any], str] | None = None
    lacking: Callable[[Shape], str] | None = None


def claim(default: Any, says: str, **more: Any) -> Any:
    """The field of a claim. ``more``: see `Claim`; ``probed=True`` means all values but None, False and the default."""
    choices = more.get("choices", (False, True) if isinstance(default, bool) else ())
    if more.get("probed") is True:
        more["probed"] = tuple(value for value in choices if value not in (None, False, default)) or (True,)
    return field(default=default, metadata={"claim": Claim(says, **{**more, "choices": choices})})


def told(of: "Field[Any]") -> Claim:
    """The declaration of a claim, from its field."""
    found: Claim = of.metadata["claim"]
    return found


_WORDS: Mapping[object, str] = {bool: "True or False", int: "a whole number", int | None: "None or a whole number"}


def wrong_value(of: "Field[Any]", value: Any) -> str:
    """The error in a claim's value, in words; empty if there is none."""
    declared, kind = told(of), of.type
    kinds = (bool,) if kind is bool else (int,) if kind is int else (int, type(None)) if kind == int | None else None
    listed = ", ".join(map(repr, (each for each in declared.choices if each is not None)))
    if kinds is not None and type(value) not in kinds:
        words = _WORDS[kind]
    elif declared.some:
        if type(value) is tuple and all(
            each in declared.choices if declared.choices else isinstance(each, str) for each in value
        ):
            return ""
        words = f"a tuple of some of {listed}" if declared.choices else "a tuple of classes"
    elif kinds is None and not any(type(value) is type(each) and value == each for each in declared.choices):
        none = "None or " if None in declared.choices else ""
        words = f"{none}one of {listed}"
    else:
        return ""
    return f"{of.name} is {words}, not {on_one_line(value)}"


def by_name(value: Any) -> Any:
    """A claim with each class replaced by its name, "module:Name".

    Raises ValueError for a class without an importable name.
    """
    if isinstance(value, tuple | list):
        return type(value)(by_name(each) for each in value)
    if not isinstance(value, type):
        return value
    if "<locals>" in value.__qualname__:
        raise ValueError(f"claims: {value.__qualname__} is defined inside a function; define it in a module")
    return f"{value.__module__}:{value.__qualname__}"


def on_one_line(value: object) -> str:
    """A value in one line for an error message, shortened if necessary."""
    words = " ".join(repr(value).split())
    return words if len(words) <= 100 else f"{words[:97]}..."
