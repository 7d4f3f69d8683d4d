"""Every small program: how many there are, counted in other ways, and what runs of all of them find."""

import itertools
from collections import Counter
from collections.abc import Iterator
from math import factorial, perm
from pathlib import Path
from typing import Any

import pytest

from lockstep.oracle.events import Backward, Clip, Finish, Step, ZeroGrad
from lockstep.oracle.model import Parameter
from lockstep.oracle.program import Scenario
from lockstep.properties.exhausting import language, running
from lockstep.properties.exhausting.judged import NOT_CLAIMED, asked, check
from lockstep.properties.exhausting.portion import ONLY_AFTER_OTHERS, Found, look
from lockstep.properties.exhausting.running import Asked, Exhausting, in_processes
from lockstep.properties.implementations import CORRECT, WRONG
from lockstep.properties.tests.trials import trial_of
from lockstep.properties.verdict import LawBroken
from lockstep.worlds.contract import World

SMALL = 7
SMALLER = 6
STATIC = "lockstep.impls.static_buckets:StaticBuckets"
NAIVE = "lockstep.impls.naive:NaiveDataParallel"
IN_TWO_ORDERS = Scenario(2, (Parameter((1,)), Parameter((1,))), (Backward(((0, 1), (1, 0))), Finish()))


def ordered_subsets(parameters: int) -> list[tuple[int, ...]]:
    return [each for length in range(1, parameters + 1) for each in itertools.permutations(range(parameters), length)]


def wanted(scenario: Scenario) -> bool:
    """Whether clipping, dropping and zeroing find gradients, and ranks are looked at after the last event."""
    for standing, event in zip(scenario.standings, scenario.program, strict=False):
        if isinstance(event, Clip | ZeroGrad) and not standing.gradients:
            return False
    return bool(scenario.program[-1].shows and scenario.microbatches)


def by_brute_force(size: int) -> Iterator[Scenario]:
    """The programs up to a size, of all scenarios that can be put together: those that the oracle does not refuse."""
    letters = {"b", "l", ZeroGrad(), ZeroGrad(False), Clip(language.MAX_NORM), Step()}
    words = [word for length in range(1, 5) for word in itertools.product(letters, repeat=length)]
    for ranks, count, word in itertools.product((2, 3), (1, 2, 3), words):
        slots = ranks * sum(letter in ("b", "l") for letter in word)
        for sizes in itertools.product((1, 2, 3), repeat=count):
            left = size - sum(sizes) - len(word)
            if {*sizes} != {*range(1, max(sizes) + 1)} or slots > left:
                continue
            for orders in itertools.product(ordered_subsets(count), repeat=slots):
                rest = iter(orders)
                program: list[list[Any]] = [
                    [Backward(tuple(itertools.islice(rest, ranks)), letter == "b"), *[Finish()] * (letter == "b")]
                    if letter in ("b", "l")
                    else [letter]
                    for letter in word
                ]
                spare = left - sum(map(len, orders))
                for cap in [None, *range(4, 4 * sum(sizes) + 1, 4)]:
                    if spare < (cap is not None):
                        continue
                    try:
                        made = Scenario(
                            ranks,
                            tuple(Parameter((each,)) for each in sizes),
                            tuple(itertools.chain.from_iterable(program)),
                            bucket_cap=cap,
                        )
                    except ValueError:
                        break
                    if wanted(made):
                        yield made


def test_the_programs_are_those_that_brute_force_puts_together() -> None:
    """All scenarios of these parts, as far as the oracle takes them: each once, and no other."""
    found = [shape.scenario(orders) for shape, orders in language.programs(SMALLER)]
    assert len(found) == language.count(SMALLER) == 81
    assert {repr(each) for each in found} == {repr(each) for each in by_brute_force(SMALLER)}


def test_their_number_is_that_of_generating_functions() -> None:
    """By size: the product of polynomials, one for the model, one for each event, one for each rank and micro-batch."""
    size, total = 10, Counter[int]()
    words = Counter(
        (len(word), sum(letter in "bl" for letter in word)) for word in {shape.events for shape in language.up_to(13)}
    )
    assert sum(words.values()) == 168
    for ranks, sizes, ((events, batches), many) in itertools.product((2, 3), language.models(), words.items()):
        reached = Counter({length: perm(len(sizes), length) for length in range(1, len(sizes) + 1)})
        product = Counter({sum(sizes) + events: many})
        for factor in [Counter({0: 1, 1: sum(sizes)}), *[reached] * (ranks * batches)]:
            product = multiplied(product, factor)
        total += product
    assert sum(count for parts, count in total.items() if parts <= size) == language.count(size) == 59_336


def multiplied(one: Counter[int], other: Counter[int]) -> Counter[int]:
    result = Counter[int]()
    for (first, here), (second, there) in itertools.product(one.items(), other.items()):
        result[first + second] += here * there
    return result


def test_programs_are_as_many_as_orbits_under_renaming_parameters() -> None:
    """Burnside: of models whose parameters are registered in any order, under any names, renaming fixes none but by the
    identity, so there are as many orbits as models times orders of registration, over as many as there are renamings.
    """
    for shape in language.up_to(SMALL):
        if len(shape.sizes) < 2:
            continue
        named, orbits = set[Any](), set[Any]()
        renamings = list(itertools.permutations(range(len(shape.sizes))))
        for orders, new in itertools.product(shape.orders(), renamings):
            named.add(renamed((shape.sizes, tuple(range(len(new))), orders), new))
        for each in named:
            images = [renamed(each, new) for new in renamings]
            assert images.count(each) == 1
            orbits.add(min(images))
        assert len(orbits) == len(named) / factorial(len(shape.sizes)) == shape.count


def renamed(program: tuple[Any, Any, Any], new: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Sizes by name, names in the order of registration, and orders, where parameter p is called new[p]."""
    sizes, registered, orders = program
    by_name = tuple(sizes[new.index(name)] for name in range(len(new)))
    return by_name, tuple(new[p] for p in registered), tuple(tuple(new[p] for p in order) for order in orders)


def test_programs_come_in_the_order_of_size_and_any_stretch_of_them_can_be_had() -> None:
    every = list(language.programs(SMALL))
    sizes = [shape.size for shape, _ in every]
    assert sizes == sorted(sizes)
    assert sizes == [language.size_of(shape.scenario(orders)) for shape, orders in every]
    assert list(language.programs(SMALL, 77, 301)) == every[77:301]
    assert list(language.programs(SMALL + 1, 0, len(every))) == every, "a larger bound only adds to them"


def test_what_is_not_of_the_core_language_has_no_size() -> None:
    one, both = Parameter((1,)), Backward(((0,), (0,)))
    assert language.size_of(Scenario(2, (one,), (both, Finish()))) == language.LEAST
    for other in (
        Scenario(2, (one,), (both, Finish()), learning_rate=0.25),
        Scenario(2, (Parameter((2,)),), (both, Finish())),
        Scenario(2, (one,), (both, Finish()), bucket_cap=3),
        Scenario(2, (one,), (both, Finish(), Clip(1.0))),
        Scenario(4, (one,), (Backward(((0,),) * 4), Finish())),
    ):
        assert language.size_of(other) is None


@pytest.mark.parametrize("name", CORRECT)
def test_all_small_programs_hold_for_what_is_right(sim: World, name: str) -> None:
    size = 6 if name == STATIC else 5
    found, failing = look(trial_of(name, sim), 0, language.count(size), size)
    assert failing is None
    assert found.held > 2
    assert not found.refused
    assert not found.excused


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_on_purpose_fails_at_its_smallest_program(sim: World, name: str) -> None:
    trial = trial_of(name, sim)
    found, failing = look(trial, 0, language.count(SMALL), SMALL)
    assert failing is not None
    assert found.held == (24 if trial.claims.bucket_cap else 19)
    ((shape, orders),) = language.programs(SMALL, failing, failing + 1)
    assert asked(trial, shape, orders) == IN_TWO_ORDERS
    with pytest.raises(LawBroken, match="Gradients are not the mean"):
        check(trial, IN_TWO_ORDERS, delivered=False)


def test_what_is_wrong_only_as_collectives_are_delivered_is_found(sim: World) -> None:
    trial = trial_of("lockstep.impls.faults.asynchrony:WaitsForTheLast", sim)
    _, failing = look(trial, 0, language.count(SMALL), SMALL)
    assert failing is not None
    ((shape, orders),) = language.programs(SMALL, failing, failing + 1)
    scenario = asked(trial, shape, orders)
    assert isinstance(scenario, Scenario)
    assert check(trial, scenario, delivered=False) == 1, "it holds as it is usually delivered"
    with pytest.raises(LawBroken) as broken:
        check(trial, scenario, delivered=True)
    assert "asynchrony" in broken.value.choices


def test_what_ranks_share_in_one_process_only_is_no_failure(sim: World) -> None:
    trial = trial_of("lockstep.properties.tests.shared_state:Bookkeeping", sim)
    found, failing = look(trial, 0, 3, 5)
    assert failing is None
    assert found.excused[ONLY_AFTER_OTHERS] > 0


def test_a_stopped_run_goes_on_where_it_stopped_and_parts_make_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked, few = list[int](), 6  # of size, in portions of 15
    monkeypatch.setattr(running, "SIZE", 15)

    def some(trial: Any, begin: int, end: int, size: int) -> tuple[Found, int | None]:
        looked.append(begin)
        if len(looked) == 3:
            raise KeyboardInterrupt
        return look(trial, begin, end, size)

    monkeypatch.setattr(running, "look", some)
    first = Exhausting(Asked(NAIVE, few, record=tmp_path), print)
    try:
        with pytest.raises(KeyboardInterrupt):
            first.run()
        assert first.result.seen == 30
        looked[:] = [-1] * 3
        for part in (1, 2):
            held = Exhausting(Asked(NAIVE, few, record=tmp_path, shard=(part, 2)), print)
            held.run()
            held.close()
            assert held.result.failing is None
        assert looked[3:] == [30, 60, 45, 75], "the first two portions are kept, and each part has every other one"
        whole = Exhausting(Asked(NAIVE, few, record=tmp_path), print)
        result = whole.run()
        whole.close()
        assert len(looked) == 7, "all is kept"
    finally:
        first.close()
    found = result.found
    assert result.seen == found.held + sum(found.left_out.values()) == language.count(few)
    assert found.left_out[NOT_CLAIMED] > 0


def test_several_processes_find_the_same_program_first() -> None:
    wrong = Asked(WRONG[0], SMALL, processes=2)
    failing = [number for _, _, number in in_processes(wrong, wrong.portions()) if number is not None]
    ((shape, orders),) = language.programs(SMALL, min(failing), min(failing) + 1)
    assert shape.scenario(orders) == IN_TWO_ORDERS
