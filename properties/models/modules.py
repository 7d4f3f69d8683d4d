"""The models, in usual torch style. They are small, so that hundreds of runs take seconds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from lockstep.properties.models import data, yours
from lockstep.properties.models.data import HIDDEN, OUT, SIDE, WIDTH, WORDS
from lockstep.properties.models.scenario import ModelScenario
from lockstep.worlds.devices import place

DROPOUT = 0.25
OUTPUTS = "outputs"  # the key of the outputs in a mapping


class Perceptron(nn.Module):
    """Two layers with ReLU between."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.first, self.second = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, OUT)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs of shape (rows, OUT)."""
        return self.second(functional.relu(self.first(inputs), self.in_place))


class Looked(nn.Module):
    """The perceptron with an embedding as its first layer, which has a sparse gradient."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.table, self.second = nn.Embedding(WORDS, HIDDEN, sparse=True), nn.Linear(HIDDEN, OUT)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs of shape (rows, OUT)."""
        return self.second(functional.relu(self.table(inputs), self.in_place))


class Tied(nn.Module):
    """A language model with tied embedding and head: one tensor with two names, reached twice in backward."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, HIDDEN)
        self.mix = nn.Linear(HIDDEN, HIDDEN)
        self.head = nn.Linear(HIDDEN, WORDS, bias=False)
        if not apart:
            self.head.weight = self.embedding.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of shape (rows, length, WORDS)."""
        return self.head(self.mix(self.embedding(inputs)).tanh())


class Convolution(nn.Module):
    """A convolution, batch norm with running statistics, and a head."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.convolution, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)
        self.head = nn.Linear(2 * (SIDE - 2) ** 2, OUT)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs of shape (rows, OUT)."""
        return self.head(functional.relu(self.norm(self.convolution(inputs)), self.in_place).flatten(1))


class MovingAverage(nn.Module):
    """Subtracts a running average. Each forward *assigns* it anew, and it is in no state dict."""

    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(WIDTH), persistent=False)
        self.layer = nn.Linear(WIDTH, 2 * OUT)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Outputs of shape (rows, 2 OUT)."""
        self.average = (self.average + inputs.detach().mean(0)) / 2
        return self.layer(inputs - self.average)


@dataclass
class Given:
    """The outputs of a model in a class of its own, with None for further values such as a loss."""

    outputs: Any
    loss: None = None


class Fork(nn.Module):
    """Two branches with a parameter each. They are returned in a mapping and a tuple, as large models do.

    With ``classed``, they are returned in a class.
    """

    def __init__(self, classed: bool) -> None:
        super().__init__()
        self.classed = classed
        self.gains = nn.Parameter(torch.ones(2, HIDDEN))

    def forward(self, hidden: torch.Tensor) -> Any:
        """The branches, each of the shape of ``hidden``."""
        outputs = {"left": hidden * self.gains[0], "others": (hidden * self.gains[1],)}
        return Given(outputs) if self.classed else outputs


class TwoHeads(nn.Module):
    """Two outputs, an early and a late one. A loss may use either or both, so backward may not reach the early one."""

    def __init__(self, classed: bool) -> None:
        super().__init__()
        self.early = nn.Linear(WIDTH, OUT)
        self.trunk, self.fork, self.late = nn.Linear(WIDTH, HIDDEN), Fork(classed), nn.Linear(HIDDEN, OUT)

    def forward(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Two tensors of shape (rows, OUT)."""
        early = self.early(inputs)
        branches = bare(self.fork(hidden=self.trunk(inputs).tanh()))
        return early, self.late(branches["left"] * branches["others"][0])


class Block(nn.Module):
    """Causal attention with one head and a feed-forward layer, each after a layer norm, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention, self.layers = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Input and result have the shape (rows, length, HIDDEN)."""
        query, key, value = self.attention(self.before_attention(x)).chunk(3, -1)
        scores = query @ key.transpose(-2, -1) / math.sqrt(HIDDEN)
        later = torch.ones_like(scores, dtype=torch.bool).triu(1)
        attended = scores.masked_fill(later, -math.inf).softmax(-1) @ value
        x = x + functional.dropout(attended, DROPOUT, self.training)
        return x + functional.dropout(functional.gelu(self.layers(self.before_layers(x))), DROPOUT, self.training)


class Transformer(nn.Module):
    """An embedding, one block used once or twice, possibly recomputed in backward, and a head."""

    def __init__(self, how: str, twice: bool, apart: bool) -> None:
        super().__init__()
        self.how, self.twice = how, twice
        self.embedding, self.block, self.head = nn.Embedding(WORDS, HIDDEN), Block(), nn.Linear(HIDDEN, WORDS)
        self.second_use = Block() if twice and apart else None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of shape (rows, length, WORDS)."""
        x = self.embedding(inputs)
        if self.how == "re-entrant" and not x.requires_grad:
            # The embedding is frozen, and a re-entrant segment has no gradients unless its input needs one.
            x.requires_grad_()
        for block in [self.block, self.second_use or self.block][: 1 + self.twice]:
            x = checkpoint(block, x, use_reentrant=self.how == "re-entrant") if self.how else block(x)
        return self.head(x)


def stands_for(scenario: ModelScenario, name: str) -> str:
    """The parameter that a parameter of a model built ``apart`` is a use of."""
    if scenario.yours:
        return name
    if scenario.model == "tied":
        return name.replace("head.", "embedding.")
    return name.replace("second_use.", "block.")


def build(scenario: ModelScenario, rank: int, apart: bool = False) -> nn.Module:
    """The model of a scenario in training mode, with a rank's initial values.

    ``apart``: each use of a parameter is a separate parameter, so that its gradients can be observed before they are
    added. This does not apply to a user's own model, in which autograd adds the gradients of one micro-batch.
    """
    if scenario.yours:
        return yours.build(scenario, rank)
    model: nn.Module
    match scenario.model:
        case "mlp":
            model = Perceptron(scenario.in_place)
        case "sparse embedding":
            model = Looked(scenario.in_place)
        case "tied":
            model = Tied(apart)
        case "batch norm":
            model = Convolution(scenario.in_place)
        case "moving average":
            model = MovingAverage()
        case "two heads":
            model = TwoHeads(scenario.classed)
        case _:
            model = Transformer(scenario.checkpoint, scenario.twice, apart)
    model.to(getattr(torch, scenario.dtype))
    values = data.initial_values(scenario, rank, {name: tuple(p.shape) for name, p in model.named_parameters()})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(values[name]))
            parameter.requires_grad_(scenario.trains(stands_for(scenario, name), scenario.thaws))
        for buffer in model.buffers():
            # Buffers also differ between ranks. Integer counts begin at values that float32 cannot represent.
            buffer.add_(rank if buffer.is_floating_point() else 2**24 + 1 + rank)
    # Done by hooks, which a copy of a model keeps. A caller that bypasses hooks gets the plain outputs.
    if scenario.classed:
        model.register_forward_hook(lambda module, inputs, outputs: Given(outputs))
    if scenario.named:
        model.register_forward_hook(lambda module, inputs, outputs: {OUTPUTS: outputs})
    return model.to(place())


def bare(outputs: Any) -> Any:
    """The outputs, taken out of a mapping under `OUTPUTS` or out of `Given`."""
    if isinstance(outputs, Mapping) and OUTPUTS in outputs:
        return bare(outputs[OUTPUTS])
    return bare(outputs.outputs) if isinstance(outputs, Given) else outputs


def loss(scenario: ModelScenario, outputs: object, batch: Mapping[str, torch.Tensor], used: int) -> torch.Tensor:
    """The loss of a micro-batch. ``used``: the outputs that it uses, as bits."""
    outputs = bare(outputs)
    if scenario.in_place:
        for output in tree_leaves(outputs):
            output.neg_().neg_()  # without changing the values
    if "targets" in batch:
        assert isinstance(outputs, torch.Tensor)
        return functional.cross_entropy(outputs.flatten(0, 1), batch["targets"].flatten())
    if isinstance(outputs, tuple):
        parts = zip(outputs, batch["coefficients"].chunk(2, 1), strict=True)
        terms = [(output * part).sum() for index, (output, part) in enumerate(parts) if used >> index & 1]
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]
    assert isinstance(outputs, torch.Tensor)
    return (outputs * batch["coefficients"]).sum()


# The learning rates and the momentum are powers of two.
OPTIMIZERS: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.25}),
    "momentum": (torch.optim.SGD, {"lr": 0.25, "momentum": 0.5}),
    "Adam": (torch.optim.Adam, {"lr": 0.125}),
}


def optimizer(scenario: ModelScenario, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of a scenario, for all parameters of a model."""
    kind, options = OPTIMIZERS[scenario.optimizer]
    options = {**options, "lr": yours.RATE} if scenario.yours else options
    made: Any = kind
    found: torch.optim.Optimizer = made(model.parameters(), **options)
    return found
