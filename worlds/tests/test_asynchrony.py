"""Asynchrony on the simulated world: collectives and messages read and write when the job says; misuse is named,
nothing else.
"""

import functools
import inspect
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from lockstep import worlds
from lockstep.worlds.contract import HAZARDS, MOMENTS_TO_READ, MOMENTS_TO_WRITE, Asynchrony, Job, Outcome, World
from lockstep.worlds.sim.watch import Watch
from lockstep.worlds.tests import flights, wrong_flights
from lockstep.worlds.tests.meaning import CASES
from lockstep.worlds.tests.outcomes import kinds, messages, plain, program, results, run_calls
from lockstep.worlds.tests.versions import TORCH

DRAWS = (0, 1, 3, 2, 0, 5, 1, 1)
CHOICES = [Asynchrony(reads, writes, DRAWS) for reads, writes in itertools.product(MOMENTS_TO_READ, MOMENTS_TO_WRITE)]


def run(world: World, function: str, payload: str, world_size: int, asynchrony: Asynchrony | None) -> Outcome:
    """The outcome of a function of a module of these tests."""
    return world.run(Job(f"lockstep.worlds.tests.{function}", payload, world_size, asynchrony=asynchrony))


@pytest.mark.parametrize("reads", MOMENTS_TO_READ)
@pytest.mark.parametrize(("writes", "first_seen"), [("completion", (1, 0)), ("drawn", (2, 1)), ("wait", (4, 4))])
@pytest.mark.parametrize("of", ["moments:looking_all_the_time", "moments:looking_at_messages"])
def test_collectives_and_messages_read_and_write_when_the_job_says(
    sim: World, of: str, reads: str, writes: str, first_seen: tuple[int, int]
) -> None:
    """Rank 0 launches first, changes its input and blocks; rank 1 is the last, and changes its own after completion."""
    draws = (1, 3) if reads == writes == "drawn" else (1,) if reads == "drawn" else (3,)
    outcome = run(sim, of, "", 2, Asynchrony(reads, writes, draws))
    zero, one = [1, 2] if reads == "launch" else [101, 102], [11, 12]
    arriving = [one, zero] if of == "moments:looking_at_messages" else [zero + one] * 2
    for result, first, arrived in zip(results(outcome), first_seen, arriving, strict=True):
        before, after = result["seen"][:first], result["seen"][first:]
        assert all(np.isnan(values).all() for values in before)
        assert [values.tolist() for values in after] == [arrived] * (5 - first)


def test_what_is_drawn_comes_from_the_draws_over_and_over(sim: World) -> None:
    def seen(*draws: int) -> object:
        asynchrony = Asynchrony("drawn", "drawn", draws)
        return plain(results(run(sim, "moments:looking_all_the_time", "", 2, asynchrony)))

    for draw, always in ((0, Asynchrony("launch", "wait")), (1, Asynchrony("completion", "completion"))):
        assert seen(draw) == plain(results(run(sim, "moments:looking_all_the_time", "", 2, always)))
    assert seen(0) == seen(0, 0, 0) != seen(1) != seen(1, 0) == seen(1, 0, 1, 0)


def test_a_poll_is_a_moment_at_which_what_else_is_there_may_be_written(sim: World) -> None:
    def seen(draw: int) -> list[int]:
        asynchrony = Asynchrony("launch", "drawn", (draw,))
        return [sum(result["seen"]) for result in results(run(sim, "moments:looking_while_polling", "", 2, asynchrony))]

    assert seen(4) == [2, 4]  # rank 1 completes it, and has had a moment more by then
    assert seen(5) == [1, 3]
    assert seen(0) == [0, 0]


def test_of_a_collective_on_which_ranks_disagree_no_handle_is_missed(sim: World) -> None:
    outcome = run(sim, "programs:swallowing_a_mismatch", "", 2, Asynchrony())
    assert kinds(outcome) == [None, None]
    assert not any(report.hazards for report in outcome)


def test_outputs_are_poisoned_but_for_the_part_that_is_input(sim: World) -> None:
    for rank, result in enumerate(results(run(sim, "moments:poisoned", "", 2, Asynchrony()))):
        assert [math.isnan(value) for value in result["floats"]] == [rank == 1, rank == 0]
        for before, size in zip(result["before"], (4, 2, 8, 1, 1), strict=True):
            own, other = before[rank * size : (rank + 1) * size], before[(1 - rank) * size : (2 - rank) * size]
            assert not own.any()
            assert other.any()
        assert all(not after.any() for after in result["after"])


@pytest.mark.parametrize("name", flights.RIGHT)
def test_right_programs_are_never_flagged_and_have_one_result(sim: World, name: str) -> None:
    for size in (1, 2, 3):
        usual = plain(results(run(sim, "flights:right", name, size, None)))
        for choice in CHOICES:
            outcome = run(sim, "flights:right", name, size, choice)
            assert [str(hazard) for report in outcome for hazard in report.hazards] == []
            assert plain(results(outcome)) == usual


@pytest.mark.parametrize("schedule", ["GPipe", "1F1B", "Interleaved1F1B"])
def test_torchs_pipelines_are_never_flagged_and_have_one_result(sim: World, schedule: str) -> None:
    usual = plain(results(program(sim, "pipeline", 3, schedule, "sharded")))
    for choice in CHOICES:
        outcome = program(sim, "pipeline", 3, schedule, "sharded", asynchrony=choice)
        hazards = [str(hazard) for report in outcome for hazard in report.hazards]
        if TORCH < (2, 12):  # greets both neighbours with one tensor, into which it receives twice at once
            hazards = [hazard for hazard in hazards if len(re.findall(r"recv\(from rank \d, 1 x", hazard)) < 2]
        assert hazards == []
        assert plain(results(outcome)) == usual


def test_every_collective_has_one_result_whenever_it_reads_and_writes(sim: World) -> None:
    for size in (1, 2, 3):
        calls = [[asked for case in CASES.values() for asked in case(size)]] * size
        usual = [report["results"] for report in results(run_calls(sim, calls))]
        for choice in CHOICES:
            outcome = program(sim, "calls", size, calls, asynchrony=choice)
            assert [report.hazards for report in outcome] == [()] * size
            assert plain([report["results"] for report in results(outcome)]) == plain(usual)


def line_of(name: str, mark: str) -> str:
    """Where a function of `worlds.tests.wrong_flights` has the comment, as "12, in function"."""
    lines, first = inspect.getsourcelines(wrong_flights.WRONG[name])
    found = [first + number for number, line in enumerate(lines) if mark in line.partition("#")[2]]
    return f"{found[0]}, in {name}" if found else ""


@pytest.mark.parametrize("name", wrong_flights.WRONG)
def test_each_misuse_is_named_with_operation_rank_and_lines(sim: World, name: str) -> None:
    for choice in CHOICES:
        outcome = run(sim, "wrong_flights:wrong", name, 2, choice)
        assert kinds(outcome) == [None, None], messages(outcome)
        for rank, report in enumerate(outcome):
            (hazard,) = report.hazards
            assert (hazard.kind, hazard.rank, hazard.place) == (name.partition("_")[0], rank, 1)
            assert hazard.collective == report.collectives[0]
            assert hazard.launched.endswith(f"wrong_flights.py:{line_of(name, 'launched')}")
            where = line_of(name, "here")
            assert hazard.line.endswith(f"wrong_flights.py:{where}") if where else not hazard.line
            for said in (f"rank {rank}", hazard.collective.operation, HAZARDS[hazard.kind], hazard.launched):
                assert said in str(hazard)


def test_without_asynchrony_nobody_watches(sim: World) -> None:
    for name in wrong_flights.WRONG:
        assert [report.hazards for report in run(sim, "wrong_flights:wrong", name, 2, None)] == [(), ()]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reads": "wait"}, "reads='wait': it must be one of launch, completion, drawn"),
        ({"writes": "launch"}, "writes='launch': it must be one of completion, drawn, wait"),
        ({"reads": "drawn"}, "draws=() is empty"),
        ({"writes": "drawn", "draws": (1, -1)}, "draws=(1, -1): they must be 0 or more"),
    ],
)
def test_choices_that_do_not_exist_are_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        Asynchrony(**options)  # type: ignore[arg-type]


INSTALLED, OURS = Path(torch.__file__).parent.parent, Path(worlds.__file__).parent


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        *(
            (f"{INSTALLED}/torchtitan/my.py", "theirs"),
            (f"{OURS}_of_mine/my.py", "theirs"),
            ("/my/functools.py", "theirs"),
        ),
        *((f"{INSTALLED}/torch/my.py", "nobody's"), (f"{OURS}/my.py", "nobody's"), (functools.__file__, "nobody's")),
    ],
)
def test_a_line_is_a_users_own_in_a_folder_that_is_called_like_ours_or_torchs(file: str, whose: str) -> None:
    names = {"watch": Watch(0, Asynchrony(), iter(()))}
    exec(compile("line = watch.line()", file, "exec"), names)
    assert (file in names["line"]) == (whose == "theirs")
