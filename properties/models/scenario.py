"""A training run of a real model, as plain data.

Its repr evaluates to it, it converts to and from JSON, and it shrinks.
"""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import ClassVar, TypeAlias

from lockstep.oracle.events import Finish, SaveAndLoad, Step, ZeroGrad
from lockstep.oracle.short import Short

YOURS = "yours"  # a user's own model, named by `ModelScenario.yours`
SPARSE = "sparse embedding"  # drawn only by laws that ask for it
MODELS = ("mlp", "tied", "batch norm", "moving average", "two heads", "transformer", SPARSE)
EXACT = ("mlp", SPARSE)  # models in integers, in which nothing rounds
CONTINUOUS = ("mlp", "batch norm", "moving average", "two heads")  # models whose inputs are no words
BUFFERED = ("batch norm", "moving average")
CHECKPOINTS = ("", "not re-entrant", "re-entrant")
OPTIMIZERS = ("SGD", "momentum", "Adam")
DTYPES = ("float32", "float64")
# For each model, the layers that may be frozen: one through which others are trained, and the last one.
LAYERS: dict[str, tuple[str, ...]] = {
    "mlp": ("second", "first"),
    "tied": ("mix",),
    "batch norm": ("head", "convolution"),
    "moving average": (),
    "two heads": ("fork",),
    "transformer": ("block", "head", "embedding"),
    SPARSE: ("second",),
}


@dataclass(frozen=True, repr=False)
class Microbatch(Short):
    """The forward and backward of the next micro-batch, inside ``no_sync`` unless it synchronizes."""

    synchronize: bool = True


@dataclass(frozen=True, repr=False)
class Freezing(Short):
    """From now on, the layer that may be frozen is ``trained``, or not."""

    trained: bool


@dataclass(frozen=True, repr=False)
class Evaluation(Short):
    """A forward of one more batch on every rank: in evaluation mode, without autograd."""


Event: TypeAlias = Evaluation | Freezing | Microbatch | Finish | SaveAndLoad | Step | ZeroGrad


@dataclass(frozen=True, repr=False)
class ModelScenario(Short):
    """One model trained on ``world_size`` ranks.

    - ``local``: for each step, the number of micro-batches inside ``no_sync`` before the synchronizing one. Then follow
      Finish, a step, and setting gradients to None.
    - ``seed``: of values and batches, which differ between ranks.
    - ``checkpoint``, ``twice``: for a transformer: how activations of its block are recomputed, and if the block is
      used two times in a row.
    - ``heads``: for two heads: the outputs that each rank's loss uses, as bits (1, 2 or 3). With each micro-batch they
      move on by one rank.
    - ``bucket_cap``: in bytes; None leaves it to the implementation.
    - ``frozen``: the layer that is frozen before the model is wrapped; empty: none.
    - ``thaws``: the step from which that layer is trained; 0: never. It is then also trainable while the model is
      wrapped, and frozen right after.
    - ``named``: the model takes its inputs by keyword and returns its outputs in a mapping.
    - ``uneven``: batch sizes vary between ranks and between micro-batches.
    - ``autocast``: forward runs under `torch.autocast`, with which torch computes some of it in bfloat16.
    - ``through``: inputs need a gradient, as if another model had computed them.
    - ``saved``: after so many steps each rank saves its state; everything is constructed anew with other values and
      loads it; 0: never.
    - ``evaluated``: after so many steps, and a save if there is one, the model is evaluated, and after each later step;
      0: never.
    - ``classed``: the model, and modules of it with more than one output, return a dataclass.
    - ``in_place``: outputs of modules are changed in place, by the model and by the caller.
    - ``yours``: the name of the function that makes a user's own model, see `properties.models.yours`.
    """

    model: str = "mlp"
    world_size: int = 2
    local: tuple[int, ...] = (0,)
    checkpoint: str = ""
    twice: bool = False
    heads: tuple[int, ...] = ()
    dtype: str = "float32"
    optimizer: str = "SGD"
    bucket_cap: int | None = None
    seed: int = 0
    frozen: str = ""
    thaws: int = 0
    named: bool = False
    uneven: bool = False
    autocast: bool = False
    through: bool = False
    saved: int = 0
    evaluated: int = 0
    classed: bool = False
    in_place: bool = False
    yours: str = ""

    buffers: ClassVar[tuple[()]] = ()  # options of a program that are left to the implementation
    replicas: ClassVar[int] = 1

    def __post_init__(self) -> None:
        known = {"model": (*MODELS, YOURS), "checkpoint": CHECKPOINTS, "optimizer": OPTIMIZERS, "dtype": DTYPES}
        for name, values in known.items():
            if getattr(self, name) not in values:
                raise ValueError(f"{name} is one of {', '.join(map(repr, values))}, not {getattr(self, name)!r}")
        if bool(self.yours) != (self.model == YOURS):
            raise ValueError(f"the model {YOURS!r}, and it alone, has a name in yours, not {self.yours!r}")
        if self.world_size < 1 or not self.local or min(self.local) < 0:
            told = f"world_size={self.world_size}, local={self.local}"
            raise ValueError(f"there are at least one rank and one step, not {told}")
        if (self.checkpoint or self.twice) and self.model != "transformer":
            raise ValueError(f"checkpoint and twice are a transformer's, not of {self.model!r}")
        if bool(self.heads) != (self.model == "two heads") or (self.heads and len(self.heads) != self.world_size):
            raise ValueError(f"two heads, and they alone, have one number a rank in heads, not {self.heads}")
        if self.frozen and self.frozen not in LAYERS[self.model]:
            known_layers = ", ".join(map(repr, LAYERS[self.model])) or "none"
            raise ValueError(f"of {self.model!r} may be frozen: {known_layers}, not {self.frozen!r}")
        if self.thaws and not (self.frozen and 0 < self.thaws < len(self.local)):
            told = f"frozen={self.frozen!r}, of {len(self.local)} steps"
            raise ValueError(f"a layer that is frozen thaws after some step, not with thaws={self.thaws}, {told}")
        if self.autocast and (self.model in EXACT or self.twice or self.dtype != "float32"):
            told = f"{self.model!r} in {self.dtype}, twice={self.twice}"
            raise ValueError(f"autocast is for models that round, in float32, which use a module once, not for {told}")
        if self.through and self.model not in CONTINUOUS:
            raise ValueError(f"inputs of {', '.join(CONTINUOUS)} take a gradient, not those of {self.model!r}")
        if not 0 <= self.saved < len(self.local) or not 0 <= self.evaluated <= len(self.local):
            told = f"saved={self.saved}, evaluated={self.evaluated}, of {len(self.local)} steps"
            raise ValueError(f"models are saved after a step but the last, and evaluated after any, not with {told}")
        if not set(self.heads) <= {1, 2, 3}:
            raise ValueError(f"the heads that a rank uses are 1, 2 or 3 (both), not {self.heads}")

    @cached_property
    def program(self) -> tuple[Event, ...]:
        """The events in order."""
        events: list[Event] = [Freezing(False)] if self.thaws else []
        for step, count in enumerate(self.local):
            events += [Freezing(True)] if step and step == self.thaws else []
            events += [*[Microbatch(False)] * count, Microbatch(), Finish(), Step(), ZeroGrad()]
            if self.saved == step + 1:  # a layer that thaws later is trainable while the model is wrapped
                events += [SaveAndLoad(), *[Freezing(False)] * (self.thaws > self.saved)]
            events += [Evaluation()] * (0 < self.evaluated <= step + 1)
        return tuple(events)

    @property
    def microbatches(self) -> int:
        """The number of micro-batches of a rank. The batch with this number is used for evaluations."""
        return sum(self.local) + len(self.local)

    def trains(self, name: str, step: int) -> bool:
        """True if the parameter with that dotted name is trained in a step."""
        return not self.freezes(name) or 0 < self.thaws <= step

    def freezes(self, name: str) -> bool:
        """True if it belongs to the layer that is frozen, permanently or for some steps."""
        return bool(self.frozen) and name.startswith(f"{self.frozen}.")

    def used(self, rank: int, batch: int) -> int:
        """The outputs that a rank's loss uses in a micro-batch, as bits."""
        return self.heads[(rank + batch) % self.world_size] if self.heads else 3

    def to_json(self) -> str:
        """The scenario as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "ModelScenario":
        """The scenario that `to_json` wrote."""
        data = json.loads(text)
        return cls(**{**data, "local": tuple(data["local"]), "heads": tuple(data["heads"])})
