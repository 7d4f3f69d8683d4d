"""What ends a synchronization is found under the names that people give it, and told before a run."""

import pytest

from lockstep.oracle.events import Backward, Finish
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.implementations import as_found
from lockstep.properties.law import concerns
from lockstep.properties.ranks import names
from lockstep.properties.searching.search import search
from lockstep.properties.tests.scripts import lines
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.trial import ENDED
from lockstep.worlds.contract import World

SHAPES = "lockstep.properties.tests.shapes"
LAWS = every_law()
CALLED = {
    "OneArgument": "finish_gradient_synchronization()",
    "Pair": "on_after_backward(model, optimizer)",
    "ReduceGradients": "reduce_gradients()",
    "Sync": "sync()",
    "AllReduceGrads": "allreduce_grads()",
    "Finish": "finish()",
    "average_gradients": "average_gradients(model)",
    "sync_grads": "sync_grads(parameters)",
}


class Odd:
    """Has what is called alike, and is none of it."""

    sync = 3

    @property
    def finish(self) -> object:
        raise RuntimeError("not now")

    def sync_gradients(self, whether: bool) -> None: ...

    def reduce_gradients(self, *, group: object) -> None: ...

    def average_gradients(self):
        yield

    async def synchronize(self) -> None: ...

    @staticmethod
    def after_backward(model: object) -> None: ...

    def sync_grads(self, group: object = None, *more: object) -> None: ...


@pytest.mark.parametrize("name", CALLED)
def test_what_is_called_is_told_before_a_run(sim: World, name: str) -> None:
    assert CALLED[name] in as_found(trial_of(f"{SHAPES}:{name}", sim).implementation)


def test_the_first_of_the_names_that_can_be_called_is(sim: World) -> None:
    assert [str(call) for call in names.all_called(Odd, names.FINISH_NAMES)] == [
        "sync_grads()",
        "after_backward(model)",
    ]
    assert names.all_called(Odd(), names.FINISH_NAMES) == names.all_called(Odd, names.FINISH_NAMES)


def test_what_is_not_called_although_its_name_is_known_is_told(sim: World) -> None:
    found = as_found(trial_of("lockstep.properties.tests.shapes:TwoNames", sim).implementation)
    assert found == "gradients are final after sync_gradients(); finish() is not called"


@pytest.mark.parametrize("name", ["Pair", "average_gradients", "sync_grads"])
def test_what_is_right_passes_all_laws_that_its_shape_claims(sim: World, name: str) -> None:
    held = 0
    for law in LAWS.values():
        under_test = trial_of(f"{SHAPES}:{name}", sim)
        if concerns(law, under_test.claims):
            assert search(law, under_test, 3, seed_value=0).failures == [], law.name
            held += under_test.witnessed[ENDED] > 0
    assert held > 10


@pytest.mark.parametrize(
    ("name", "right"),
    [
        *((name, True) for name in ("Pair", "average_gradients", "sync_grads", "made_by_a_function")),
        *((name, False) for name in ("PairSums", "OfTheModelThatSums.average_gradients", "made_wrong_by_a_function")),
    ],
)
def test_scripts_call_it_too(sim: World, name: str, right: bool) -> None:
    program = (Backward(((0, 1), (1, 0))), Finish())
    told = lines(sim, f"{SHAPES}:{name}", Scenario(2, (Parameter((1,)), Parameter((2,))), program))
    of_gradients = [line for line in told if "the gradient of" in line]
    assert of_gradients
    assert all(line.endswith("right") for line in of_gradients) == right
