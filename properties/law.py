"""A law: its sentence, its strategy and its check; and the decorator that makes a pytest test of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from lockstep.oracle.program import Scenario
from lockstep.properties.claims import KINDS, Claims
from lockstep.properties.trial import Trial


@dataclass(frozen=True)
class Law:
    """A law. ``check(trial, drawn)`` raises LawBroken if it does not hold.

    - ``witnesses``: events that must take place in some example, else the law has shown nothing; with an example of
      each.
    - ``only_on``: the worlds on which it can be checked, each with the reason; empty for any world.
    - ``shown_by``: for a law of one run: true if it applies to a program that was drawn for another law.
    - ``made_of``: for a law that relates several runs: the value to check it on, made from a program drawn for another
      law; None if that is not possible.
    - ``share``: the part of the usual number of examples that is drawn for this law if all laws are checked. Less than
      1 only if programs drawn for other laws show enough.

    A law with neither ``shown_by`` nor ``made_of`` is checked on its own programs alone.
    """

    number: str
    name: str
    says: str
    draws: Callable[[Claims], st.SearchStrategy[Any]]
    check: Callable[[Trial, Any], None]
    needs: Callable[[Claims], bool]
    witnesses: Mapping[str, Any]
    only_on: Mapping[str, str] = field(default_factory=dict)
    shown_by: Callable[[Scenario], bool] | None = None
    made_of: Callable[[Claims, Scenario], Any] | None = None
    share: float = 1


def law(
    number: str,
    draws: Callable[[Claims], st.SearchStrategy[Any]],
    needs: Callable[[Claims], bool] = lambda claims: True,
    witnesses: Mapping[str, Any] | None = None,
    only_on: Mapping[str, str] | None = None,
    shown_by: Callable[[Scenario], bool] | None = None,
    made_of: Callable[[Claims, Scenario], Any] | None = None,
    share: float = 1,
) -> Callable[[Callable[[Trial, Any], None]], Callable[..., None]]:
    """Make a pytest test of a check. `lockstep.pytest_plugin` runs it on each world and implementation.

    ``number``: of its family, for example P6. ``needs``: true if the claims make the law apply. For the rest see `Law`.
    """

    def decorate(check: Callable[[Trial, Any], None]) -> Callable[..., None]:
        told = (number, check.__name__, check.__doc__ or "", draws, check, needs, witnesses or {}, only_on or {})
        made = Law(*told, shown_by, made_of, share)

        def test(hold: Callable[[Law], None]) -> None:
            hold(made)

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        test.law = made  # type: ignore[attr-defined]  # read by the plugin
        return test

    return decorate


def law_of(test: Callable[..., None]) -> Law:
    """The law of a test made by `law`."""
    found: Law = test.law  # type: ignore[attr-defined]
    return found


# The laws that apply to sharded optimizers, by number or name. The others are about wrappers of a model.
OF_OPTIMIZERS = {"P4", "P5", "P10", "P11", "P12"} | {
    "test_features_go_together_in_any_combination",
    "test_collectives_may_read_and_write_at_any_time",
    "test_frozen_parameters_stay_as_they_are",
    "test_what_is_frozen_or_trained_again_is_followed",
    "test_a_tensor_of_two_names_is_one",
    "test_an_optimizer_that_is_made_right_after_wrapping_steps_what_is_trained",
    "test_a_model_trained_beside_another_is_as_if_it_were_alone",
    "test_what_is_held_does_not_grow_from_step_to_step",
}
OF_CLASSES = "test_steps_of_any_claimed_class_have_the_bits_of_the_plain_optimizer"
# If backward steps, gradients cannot be observed, so other laws cannot be checked.
OF_STEPS_IN_BACKWARD = "test_a_backward_that_steps_uses_the_mean_of_all_micro_batches_once"
# The state of a sharded optimizer differs between ranks.
NOT_OF_OPTIMIZERS = {"test_optimizer_state_is_the_same_on_every_rank"}


MEAN = "test_gradients_equal_the_mean_over_ranks"
# The plainest laws, in this order. The others follow by number, and within a number in the order of their files.
PLAINEST = (
    "test_every_rank_starts_with_the_parameters_of_rank_0",
    MEAN,
    "test_every_rank_issues_the_same_collectives",
    "test_replicas_are_bitwise_equal_after_construction_and_after_every_step",
)


def plainness(law: Law) -> tuple[int, int]:
    """The key that sorts laws, the plainest first. A failure is reported under the first law that it breaks."""
    place = PLAINEST.index(law.name) if law.name in PLAINEST else len(PLAINEST)
    return place, int(law.number[1:])


def turn(law: Law) -> tuple[int, int]:
    """The key for the order in which laws are checked: the mean first, which shows most defects, then the plainest."""
    place, number = plainness(law)
    return (-1 if law.name == MEAN else place), number


def concerns(law: Law, claims: Claims) -> bool:
    """True if the law applies to code with these claims.

    Some families, for example wrappers of collectives, have laws of their own and no others.
    """
    if claims.is_optimizer and (law.name in NOT_OF_OPTIMIZERS or not {law.number, law.name} & OF_OPTIMIZERS):
        return False
    if claims.of_one_kind and law.name != OF_CLASSES:
        return False
    if claims.steps_in_backward and law.name != OF_STEPS_IN_BACKWARD:
        return False
    if law.number != claims.family and (claims.family or law.number in KINDS.values()):
        return False
    return law.needs(claims)


# The families of laws, by number.
FAMILIES: Mapping[str, str] = {
    "P1": "Mean over ranks",
    "P2": "Divisor of the mean",
    "P3": "Gradient accumulation",
    "P4": "Equal replicas",
    "P5": "Matching collectives",
    "P6": "Unused parameters",
    "P7": "Asynchrony",
    "P8": "Invariance",
    "P9": "Clipping",
    "P10": "Sharded training",
    "P11": "Checkpoints",
    "P12": "Optimizer steps",
    "P13": "Precision",
    "P14": "Wrappers of collectives",
    "P15": "Binding to the model",
    "P16": "Start and buffers",
    "P17": "Kernels",
    "P18": "Cost and overlap",
    "P19": "Training loops",
    "P20": "Samplers and loaders",
    "P21": "Parameters that belong to some ranks",
}


def sentence(law: Law) -> str:
    """The law's name as words."""
    return as_sentence(law.name)


def as_sentence(name: str) -> str:
    """The name of a law's test as words."""
    return name.removeprefix("test_").replace("_", " ")
