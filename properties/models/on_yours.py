"""The laws on real models, held on a user's own."""

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

# What they are about that a user's model may not have: sparse gradients, and inputs that take a gradient.
_ABOUT_OURS = (
    "test_sparse_gradients_are_averaged_row_by_row",
    "test_a_model_hands_back_the_gradient_of_its_own_ranks_loss",
)


@dataclass(frozen=True)
class YourModel:
    """A user's own model: the name of the function that makes it."""

    name: str
    has_buffers: bool

    def is_held(self, law: Law, claims: Claims) -> bool:
        """True if a law is held on it against what claims this. Of buffers nobody says what an evaluation finds that
        are sent before each forward; nor what is saved before the first.
        """
        from lockstep.properties import test_models

        if not hasattr(test_models, law.name) or law.name in _ABOUT_OURS or not concerns(law, claims):
            return False
        if not self.has_buffers:
            return law.number != "P16"
        known = claims.equal_from == EQUAL_FROM[0]
        return {"P11": known, "P12": known and claims.buffers != BUFFERS[-1]}.get(law.number, True)

    def on(self, law: Law) -> Law:
        """A law on real models, held on this one: the same runs, where all that the owner of a model decides is left to
        the owner.
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
    """Makes a model and runs it, on one rank. Raises Unusable, in one line, for what cannot be followed, and where it
    has buffers and nobody says what becomes of them. ``asked``: how it was given, for that line.
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
