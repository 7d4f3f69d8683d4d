"""Real models that go on from a checkpoint, with one known fault each."""

from collections.abc import Mapping

import torch
from torch import nn

from lockstep.impls.zero1 import Zero1

Parameters = Mapping[str, torch.Tensor]
States = Mapping[str, Mapping[str, torch.Tensor]]

RESUMED = "test_a_real_model_that_is_saved_and_loaded_goes_on_as_if_nothing_had_happened"
PROBES = "test_saving_loading_and_going_on_equals_a_run_that_was_not_interrupted"


class StatesByLastNames(Zero1):
    """Knows a state by the last part of its parameter's name, and by its shape."""

    known_fault = "two modules whose parameters are called alike, and of one shape, come back with one state"
    source = "recipe: names that are cut short"
    killed_by = (RESUMED,)

    def full_optimizer_state(self) -> dict[str, dict[str, torch.Tensor]]:
        """See `properties.sharded.Sharded`."""
        found = super().full_optimizer_state()
        keys = {name: (name.rpartition(".")[2], self._by_name[name].shape) for name in found}
        kept = {keys[name]: state for name, state in found.items()}
        return {name: kept[key] for name, key in keys.items()}


class TakesTiesApart(Zero1):
    """Gives each name a tensor of its own when it loads."""

    known_fault = "tied parameters are two once they have been loaded, of which one is no longer trained"
    source = "recipe: tensors made anew by name, as in https://github.com/huggingface/accelerate/pull/1204"
    killed_by = (RESUMED, PROBES)

    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        super().load_full(parameters, optimizer_state)
        for name, parameter in self._by_name.items():
            if self._names[parameter] != name:
                owner, _, last = name.rpartition(".")
                values = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                setattr(self.module.get_submodule(owner), last, values)


class LoadsWhatItTrains(Zero1):
    """Takes what is frozen for known, and loads the rest."""

    known_fault = "a frozen layer is not loaded: it stays as it was built"
    source = "recipe: what is frozen left out, as in https://github.com/deepspeedai/DeepSpeed/issues/6771"
    killed_by = (RESUMED,)

    def load_full(self, parameters: Parameters, optimizer_state: States | None = None) -> None:
        """See `properties.sharded.Sharded`."""
        built = {name: parameter.detach().clone() for name, parameter in self.module.named_parameters()}
        super().load_full(parameters, optimizer_state)
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                if not parameter.requires_grad:
                    parameter.copy_(built[name])
