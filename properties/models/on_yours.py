"""The laws on real models, checked on a user's own model."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from lockstep.properties.claims import BUFFERS, EQUAL_FROM, Claims
from lockstep.properties.implementations import Implementation, Unusable
from lockstep.properties.law import Law, concerns
from lockstep.properties.models.scenario import YOURS, ModelScenario
from lockstep.worlds.contract import Job, World

# Laws on properties that a user's model may lack: sparse gradients, and inputs that need a gradient.
_ABOUT_OURS = (
    "test_sparse_gradients_are_averaged_row_by_row",
    "test_a_model_hands_back_the_gradient_of_its_own_ranks_loss",
)


@dataclass(frozen=True)
class YourModel:
    """A user's own model: the ``name`` of the function that makes it."""

    name: str
    has_buffers: bool

    def is_held(self, law: Law, claims: Claims) -> bool:
        """True if a law is checked on it for an implementation with these claims.

        No claim says which buffers an evaluation finds if they are broadcast before each forward, or which are saved
        before the first forward. Such laws are left out for models with buffers.
        """
        from lockstep.properties import test_models

        if not hasattr(test_models, law.name) or law.name in _ABOUT_OURS or not concerns(law, claims):
            return False
        if not self.has_buffers:
            return law.number != "P16"
        known = claims.equal_from == EQUAL_FROM[0]
        return {"P11": known, "P12": known and claims.buffers != BUFFERS[-1]}.get(law.number, True)

    def on(self, law: Law) -> Law:
        """A law on real models, with its runs on this model.

        Choices that belong to the model's owner are left to the owner.
        """

        def of(scenario: ModelScenario) -> ModelScenario:
            kept: dict[str, Any] = {"optimizer": scenario.optimizer, "bucket_cap": scenario.bucket_cap}
            kept |= {"seed": scenario.seed, "saved": scenario.saved, "evaluated": scenario.evaluated}
            return ModelScenario(YOURS, scenario.world_size, scenario.local, **kept, yours=self.name)

        def draws(claims: Claims) -> st.SearchStrategy[Any]:
            return law.draws(claims).map(of)

        return replace(law, draws=draws, witnesses={})


def try_out_model(
    name: str, implementations: Sequence[Implementation], world: World, asked: str = "--model "
) -> YourModel:
    """Make a model and run it on one rank. ``asked``: the option in messages.

    Raises Unusable with a message of one line if the model cannot be tested, or if it has buffers and the
    implementation claims nothing about them.
    """
    (report,) = world.run(Job("lockstep.properties.models.yours:try_out", json.dumps(name), 1))
    world.close()
    if report.result is None or report.result["wrong"]:
        words = report.result["wrong"] if report.result else f"{name}: {report.error and report.error.message}"
        raise Unusable(f"{asked}{' '.join(words.split())}")
    silent = [each.short for each in implementations if each.claims.buffers is None]
    if report.result["has_buffers"] and silent:
        known = " or ".join(f'{{"buffers": "{value}"}}' for value in BUFFERS)
        words = f"the model has buffers, and {silent[0]} does not say what becomes of them; it claims {known}"
        raise Unusable(f"{asked}{name}: {words}")
    return YourModel(name, report.result["has_buffers"])
