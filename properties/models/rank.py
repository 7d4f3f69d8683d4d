"""The program of every rank: train a real model with an implementation, and observe it from outside."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from lockstep.oracle.events import Finish, SaveAndLoad, Step, ZeroGrad
from lockstep.properties.claims import EQUAL_FROM, SAVED_BY
from lockstep.properties.conditions import AS_USUAL, Conditions
from lockstep.properties.failure_place import note
from lockstep.properties.models import data, modules, yours
from lockstep.properties.models.model_seen import ModelSeen
from lockstep.properties.models.scenario import Evaluation, Event, Freezing, Microbatch, ModelScenario
from lockstep.properties.ranks import adapter, checkpoint
from lockstep.properties.ranks.optimizers import Averaged, maker
from lockstep.properties.ranks.pieces import Pieces
from lockstep.properties.ranks.probes import to_numpy
from lockstep.properties.ranks.stepping import saved_state
from lockstep.properties.seen import Values
from lockstep.worlds.devices import place

OTHER_VALUES = 1000  # added to the seed of a model that then loads the saved values


@lru_cache(maxsize=8)
def _read(payload: str) -> tuple[str, ModelScenario, bool, Conditions]:
    """The implementation's name, the scenario, true if parameters may be sharded, and the conditions from its claims.

    They are parsed once for all ranks of the simulated world.
    """
    request = json.loads(payload)
    name, scenario = request.pop("implementation"), ModelScenario.from_json(request.pop("scenario"))
    return name, scenario, request.pop("pieces", False), Conditions.of(request)


def train(payload: str, rank: int, world_size: int) -> ModelSeen:
    """Run a scenario.

    ``payload``: the implementation's name, the scenario, the conditions from its claims, and ``pieces``, which is true
    if ranks may hold pieces of parameters that only this code can assemble.
    """
    name, scenario, pieces, conditions = _read(payload)
    number = -1
    try:
        training = ModelTraining(name, scenario, rank, pieces, conditions)
        if conditions.equal_from == EQUAL_FROM[0]:
            training.seen["initial"] = [*training.parameters(), *training.buffers()]
        for number in range(len(scenario.program)):
            training.run(scenario.program[number])
    except Exception as error:
        error.add_note(note(number, scenario.program))
        raise
    return training.seen


class ModelTraining:
    """One rank's model, implementation and training loop, and their observations."""

    pieces: Pieces | None = None

    def __init__(
        self,
        name: str,
        scenario: ModelScenario,
        rank: int,
        in_pieces: bool = False,
        conditions: Conditions = AS_USUAL,
    ) -> None:
        self.conditions = conditions
        self.name, self.scenario, self.rank, self.batch, self.in_pieces = name, scenario, rank, 0, in_pieces
        self.model = modules.build(scenario, rank)
        self.names = [name for name, _ in self.model.named_parameters()]
        self.seen = ModelSeen(gradients=[], parameters=[], buffers=[], inputs=[], outputs=[], inner=[])
        self.seen["names"] = (self.names, [name for name, _ in self.model.named_buffers()])
        self.seen["given"] = [to_numpy(tensor) for tensor in (*self.model.parameters(), *self.model.buffers())]
        self._wrap()
        torch.manual_seed(seed_of(scenario, rank))  # each rank has its own random numbers

    def _wrap(self) -> None:
        options: Any = self.scenario  # it has the fields that a constructor takes from a program
        wholes = [parameter.detach().clone() for parameter in self.model.parameters()] if self.in_pieces else []
        self.wrapped = adapter.construct(self.name, self.model, options)
        if isinstance(self.wrapped, Averaged):
            self.wrapped.heed(self.conditions.averages_in_step, self.conditions.zeros)
        self.offers = adapter.offers(self.wrapped)
        if self.in_pieces and "full_gradients" not in self.offers:
            self.pieces = Pieces(self.names, wholes, list(self.model.parameters()))
        self.optimizer = self._optimizer()  # made after wrapping, which may replace parameters

    def _optimizer(self) -> Any:
        """The implementation's optimizer, if it shards optimizer state; else the caller's."""
        kind, options = modules.OPTIMIZERS[self.scenario.optimizer]
        options = {**options, "lr": yours.RATE} if self.scenario.yours else options
        if "make_optimizer" not in self.offers:
            return maker(self.wrapped, kind)(self.model.parameters(), **options)
        return self.wrapped.make_optimizer(kind, [{"names": self.names}], **options)

    def parameters(self) -> Values:
        """Copies of the full parameters."""
        if "full_parameters" in self.offers:
            whole = adapter.full_parameters(self.wrapped)
            return [to_numpy(whole[name]) for name in self.names]
        return self._together(list(self.model.parameters()))  # by order, because a wrapper may have renamed them

    def gradients(self) -> Values:
        """Copies of the full gradients."""
        if "full_gradients" in self.offers:
            whole = self.wrapped.full_gradients()
            return [to_numpy(whole[name]) for name in self.names]
        return self._together([parameter.grad for parameter in self.model.parameters()])

    def _together(self, values: list[torch.Tensor | None]) -> Values:
        """Copies of the full tensors."""
        return [to_numpy(each) for each in (values if self.pieces is None else self.pieces.together(values))]

    def buffers(self) -> Values:
        """Copies of the buffers."""
        return [to_numpy(buffer) for buffer in self.model.buffers()]

    def save(self) -> dict[str, Any]:
        """The checkpoint of a caller: weights, buffers, optimizer state, and this rank's random state."""
        whole = "load_full" in self.offers
        by = self.conditions.saved_by if isinstance(self.wrapped, Averaged) else SAVED_BY[0]
        told = self.wrapped.full_optimizer_state() if whole else saved_state(self.optimizer, by)
        rest = {"optimizer": checkpoint.kept(told)}
        weights, rest = checkpoint.ended((checkpoint.weights_of(self.model, self.wrapped, self.offers), rest))
        return {"weights": weights, **rest, "random": random_numbers()}

    def load(self, saved: dict[str, Any]) -> None:
        """Construct everything anew, with other values, and load the result of `save`."""
        self.model = modules.build(replace(self.scenario, seed=self.scenario.seed + OTHER_VALUES), self.rank)
        self._wrap()
        weights, states = saved["weights"], saved["optimizer"]
        if "load_full" in self.offers:
            weights = {**weights, "parameters": checkpoint.backwards(weights["parameters"])}
            states = checkpoint.backwards(states)
        else:
            self.optimizer.load_state_dict(states)
        checkpoint.load_weights(self.model, self.wrapped, self.offers, weights, states)
        random_numbers(saved["random"])

    def run(self, event: Event) -> None:
        """Run one event and make the observations after it."""
        match event:
            case Freezing():
                for name, parameter in zip(self.names, self.model.parameters(), strict=True):
                    if self.scenario.freezes(name):
                        parameter.requires_grad_(event.trained)
            case Microbatch():
                with adapter.synchronizing(self.wrapped, event.synchronize):
                    if event.synchronize:
                        adapter.start(self.wrapped, self.model)
                    begin = partial(adapter.before_backward, self.wrapped, self.model) if event.synchronize else None
                    of_inputs = backward(self.scenario, self.wrapped, self.rank, self.batch, begin)
                self.batch += 1
                self.seen["buffers"].append(self.buffers())
                self.seen["inputs"].append([to_numpy(of_inputs)])
                if "initial" not in self.seen:
                    self.seen["initial"] = self.parameters()
            case Finish():
                adapter.finish(self.wrapped, self.model)
                self.seen["gradients"].append(self.gradients())
            case Step():
                self.optimizer.step()
                self.seen["parameters"].append(self.parameters())
            case ZeroGrad():
                (self.wrapped if "zero_grad" in self.offers else self.model).zero_grad(set_to_none=event.set_to_none)
            case SaveAndLoad():
                self.load(self.save())
            case Evaluation():
                outputs, inner = evaluate(self.scenario, self.model, self.wrapped, self.rank)
                self.seen["outputs"].append(outputs)
                self.seen["inner"].append(inner)


def batch_of(scenario: ModelScenario, rank: int, number: int) -> dict[str, torch.Tensor]:
    """A rank's batch with that number, on the model's device."""
    return {name: torch.from_numpy(values).to(place()) for name, values in data.batch(scenario, rank, number).items()}


def forward(scenario: ModelScenario, model: nn.Module, inputs: torch.Tensor) -> Any:
    """The outputs of a model, wrapped or not.

    It runs on one thread, whatever the implementation has set. With more threads, torch adds some values in another
    order, for example in the gradients of a layer norm.
    """
    torch.set_num_threads(1)
    with torch.autocast(torch.device(place()).type, torch.bfloat16, scenario.autocast):
        return model(inputs=inputs) if scenario.named else model(inputs)


def backward(
    scenario: ModelScenario, model: nn.Module, rank: int, number: int, begin: Callable[[], None] | None = None
) -> torch.Tensor | None:
    """Run forward and backward of one micro-batch. Returns the gradient of the inputs, if they need one.

    ``begin``: called between the two.
    """
    inputs: Any = None
    if scenario.yours:
        given, loss_of = yours.sample(scenario, rank, number)
        torch.set_num_threads(1)
        loss = loss_of(yours.call(model, given))
    else:
        batch = batch_of(scenario, rank, number)
        inputs = batch["inputs"].requires_grad_(scenario.through)
        outputs = forward(scenario, model, inputs)
        loss = modules.loss(scenario, outputs, batch, scenario.used(rank, number))
    if begin is not None:
        begin()
    loss.backward()
    return None if inputs is None else inputs.grad


@torch.no_grad()
def evaluate(
    scenario: ModelScenario, model: nn.Module, wrapped: Any, rank: int
) -> tuple[Values, list[tuple[str, Any]]]:
    """The outputs for one more batch in evaluation mode without autograd, and those of a user's own modules.

    ``wrapped``: the model, or its wrapper.
    """
    inner: list[tuple[str, Any]] = []
    # A caller switches the wrapper. If the wrapper does not have the model as a submodule, the model is switched too.
    shown = isinstance(wrapped, nn.Module) and any(each is model for each in wrapped.modules())
    switched = [wrapped] if shown else [each for each in (wrapped, model) if isinstance(each, nn.Module)]
    for module in switched:
        module.eval()
    if scenario.yours:
        torch.set_num_threads(1)
        with yours.outputs_of_modules(model) as inner:
            outputs = yours.call(wrapped, yours.sample(scenario, rank, scenario.microbatches)[0])
    else:
        outputs = forward(scenario, wrapped, batch_of(scenario, rank, scenario.microbatches)["inputs"])
    for module in switched:
        module.train()
    leaves = tree_leaves(modules.bare(outputs))
    return [to_numpy(output) for output in leaves if isinstance(output, torch.Tensor)], inner


def seed_of(scenario: ModelScenario, rank: int) -> int:
    """The seed of a rank's random numbers."""
    return 1000 * (scenario.seed + 1) + rank


def random_numbers(state: torch.Tensor | None = None) -> torch.Tensor:
    """The state of the generator that dropout uses here. If a ``state`` is given, it is set first."""
    generator: Any = torch if place() == "cpu" else torch.cuda
    if state is not None:
        generator.set_rng_state(state)
    found: torch.Tensor = generator.get_rng_state()
    return found
