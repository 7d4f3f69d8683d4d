"""The frequency of each feature in drawn programs: ``python -m lockstep.properties.strategies --examples 1000``."""

import argparse
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from lockstep.oracle.joining import DIVISORS
from lockstep.oracle.program import Scenario
from lockstep.properties.catalogue import every_law
from lockstep.properties.claims import COLLECTIVES, Claims
from lockstep.properties.expected import known
from lockstep.properties.law import concerns
from lockstep.properties.models.draws import DENSE, provable_scenarios
from lockstep.properties.models.draws import MOST_RANKS as MOST_RANKS_OF_A_MODEL
from lockstep.properties.models.scenario import ModelScenario
from lockstep.properties.strategies import MOST_RANKS, scenarios
from lockstep.properties.strategies.calls import calls_of_any, dtypes
from lockstep.properties.strategies.features import FEATURES
from lockstep.properties.strategies.independent import sample
from lockstep.properties.strategies.meetings import SELDOM, meetings
from lockstep.properties.strategies.traits import TRAITS
from lockstep.properties.wrapper_call import MOST_RANKS as MOST_RANKS_OF_A_CALL
from lockstep.properties.wrapper_call import Call

T = TypeVar("T")
# Claims of code for which no program is drawn, of optimizers, and of code that shards parameters.
_OF_OPTIMIZERS = ("is_optimizer", "of_one_kind", "averages_in_step")
_OF_SAMPLERS = ("sampler", "batches", "shuffles", "drops_last", "gathers")
_OF_LOOPS = ("loop", "clips_norm", "follows_schedule", "skips_overflow")
_OF_EXPERTS = ("experts", "clips_experts", "saves_experts")
_WITH_ONE_LAW = ("plain_layers", "steps_in_backward")
_OF_NO_PROGRAM = (*_OF_OPTIMIZERS, *_OF_SAMPLERS, *_OF_LOOPS, *_OF_EXPERTS)
_NO_SCENARIOS = ("kernels", "differentiable", "integers", *_WITH_ONE_LAW, *_OF_NO_PROGRAM)
_PROMISES: dict[str, Any] = {
    field.name: True for field in fields(Claims) if field.default is False and field.name not in _NO_SCENARIOS
}
# Claims with several alternatives, such as the stage, have one value each.
EVERYTHING = Claims(**_PROMISES, unused="untouched", buffers="initial", reentrant_checkpointing="any", joins=DIVISORS)
# All claims about the arguments of wrappers of collectives.
GIVEN = Claims(collectives=COLLECTIVES, sixteen_bits=True, integers=True, empty_parameters=True)


@cache
def _expectation(scenario: Scenario) -> str:
    expected = known(scenario, EVERYTHING)
    if expected is None:
        return "neither, so left out"
    return "every bit known" if expected.exact else "some values enclosed"


def _is(read: Callable[[T], Any], value: Any) -> Callable[[T], bool]:
    return lambda each: bool(read(each) == value)


def _ranks(most: int) -> dict[str, Callable[[Any], bool]]:
    return {f"world size {ranks}": _is(lambda each: each.world_size, ranks) for ranks in range(1, most + 1)}


PROGRAMS: dict[str, Callable[[Scenario], bool]] = {
    **{kind: _is(_expectation, kind) for kind in ("every bit known", "some values enclosed", "neither, so left out")},
    **_ranks(MOST_RANKS),
    **{name: feature.occurs for name, feature in FEATURES.items()},
    **TRAITS,
}
REAL_MODELS: dict[str, Callable[[ModelScenario], bool]] = {
    **{model: _is(lambda run: run.model, model) for model in DENSE},
    "batches of several sizes": lambda run: run.uneven,
    "autocast": lambda run: run.autocast,
    **_ranks(MOST_RANKS_OF_A_MODEL),
}
CALLS: dict[str, Callable[[Call], bool]] = {
    **{operation: _is(lambda call: call.operation, operation) for operation in COLLECTIVES},
    **_ranks(MOST_RANKS_OF_A_CALL),
    **{dtype: _is(lambda call: call.dtype, dtype) for dtype in dtypes(GIVEN, integers=True)},
    "no dimensions": lambda call: call.dimensions == 0,
    "no elements": lambda call: 0 in call.shape,
}


def shares(drawn: Sequence[T], told: Mapping[str, Callable[[T], Any]]) -> dict[str, float]:
    """The share of draws that have each property, in percent."""
    return {name: 100 * sum(bool(holds(each)) for each in drawn) / len(drawn) for name, holds in told.items()}


def table(examples: int) -> dict[str, dict[str, float]]:
    """The shares among so many programs, runs of real models, and calls of collectives."""
    return {
        "programs": shares(sample(scenarios(EVERYTHING), examples), PROGRAMS),
        "real models": shares(sample(provable_scenarios(EVERYTHING), examples), REAL_MODELS),
        "calls of a collective": shares(sample(calls_of_any(GIVEN), examples), CALLS),
    }


def drawn_by_laws(claims: Claims, examples: int) -> list[Scenario]:
    """The programs that the laws draw for code with these claims. ``examples``: of a law that draws its whole share.

    Laws that draw more than a program, for example two programs to compare, are left out.
    """
    found: list[Scenario] = []
    for law in every_law().values():
        if concerns(law, claims):
            drawn = sample(law.draws(claims), max(1, round(examples * law.share)))
            found += [each for each in drawn if isinstance(each, Scenario)]
    return found


def print_pairs(examples: int) -> None:
    """Print how often each feature occurs in the programs of the laws, and which pairs are rare."""
    drawn = drawn_by_laws(EVERYTHING, examples)
    told = meetings(drawn, EVERYTHING)
    print(f"Of {len(drawn)} programs of all laws, {examples} of a law that draws its whole share")
    for each, count in told.items():
        if len(each) == 1:
            print(f"  {each[0]:28}{count:6}")
    pairs = {each: count for each, count in told.items() if len(each) == 2}
    few = {each: count for each, count in pairs.items() if count < SELDOM}
    print(f"Of {len(pairs)} pairs, {len(few)} occur in fewer than {SELDOM} programs")
    for each, count in few.items():
        print(f"  {' and '.join(each):52}{count:6}")


def main() -> None:
    """Prints how often, in percent, each feature is drawn for code that shards nothing and claims nearly all else."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.properties.strategies", description=main.__doc__)
    parser.add_argument("--examples", type=int, default=1000, help="how many are drawn of each (default: %(default)s)")
    parser.add_argument("--pairs", action="store_true", help="those that the laws draw; pairs that are seldom drawn")
    asked = parser.parse_args()
    if asked.examples < 1:
        parser.error(f"--examples {asked.examples}: at least 1")
    if asked.pairs:
        print_pairs(asked.examples)
        return
    for of, rows in table(asked.examples).items():
        print(f"Of {asked.examples} {of}")
        for name, percent in rows.items():
            print(f"  {name:28}{percent:6.1f} %")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # so that `| head` ends it silently, like other commands
    main()
