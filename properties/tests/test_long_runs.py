"""A long run says how far it is, is split into parts, and goes on where it was stopped."""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from lockstep.oracle.program import Scenario
from lockstep.properties import test_mean, test_start
from lockstep.properties.implementations import Unusable, look_up
from lockstep.properties.law import Law, law_of, sentence
from lockstep.properties.running import budget as budgets
from lockstep.properties.running.budget import Budget
from lockstep.properties.running.profiles import LONG, examples, run_seed
from lockstep.properties.running.record import Record
from lockstep.properties.running.selection import part
from lockstep.properties.running.sources import sources
from lockstep.properties.searching.others import Others
from lockstep.properties.trial import ENDED, Trial
from lockstep.worlds.contract import World
from lockstep.worlds.sim.world import SimWorld

MEAN = law_of(test_mean.test_gradients_equal_the_mean_over_ranks)
START = law_of(test_start.test_every_rank_starts_with_the_parameters_of_rank_0)
NAIVE = "lockstep.impls.naive:NaiveAccumulation"
PORTION = 20


class Stopped(BaseException):
    """Somebody has pressed Ctrl-C."""


@pytest.fixture
def naive(sim: World, monkeypatch: pytest.MonkeyPatch) -> Trial:
    """An implementation, of which no example is kept."""
    monkeypatch.setattr(budgets, "settings", lambda: settings(database=None))
    (implementation,) = look_up([NAIVE], sim)
    return Trial(implementation, sim)


def checking(seen: list[Scenario], most: int = 10**6) -> Law:
    """The law of the mean, which notes on what it is checked, and is stopped after so many examples."""

    def check(trial: Trial, drawn: Any) -> None:
        if len(seen) == most:
            raise Stopped
        seen.append(drawn)
        MEAN.check(trial, drawn)

    return replace(MEAN, check=check)


def budget(record: Record | None = None, **options: Any) -> Budget:
    """50 examples in portions of 20."""
    return Budget("7", record, examples=50, portion=PORTION, **options)


def record(folder: Path, seed: str = "7") -> Record:
    kept = Record(folder)
    kept.begin(seed)
    return kept


def test_a_run_that_was_stopped_goes_on_where_it_was(naive: Trial, tmp_path: Path) -> None:
    """All in all it checks what one run checks that was never stopped, and what has passed only once."""
    whole, first, rest = list[Scenario](), list[Scenario](), list[Scenario]()
    expected = budget().spend(checking(whole), naive)
    with pytest.raises(Stopped):
        budget(record(tmp_path)).spend(checking(first, most=len(whole) - 3), naive)
    naive.witnessed.clear()
    found = budget(record(tmp_path)).spend(checking(rest), naive)
    passed = whole[: len(whole) - len(rest)]
    assert first[: len(passed)] == passed
    assert passed
    assert rest == whole[len(passed) :]
    assert found.examples == expected.examples == naive.witnessed[ENDED] == len(whole)


def test_what_has_passed_to_its_end_is_not_run_again(naive: Trial, tmp_path: Path) -> None:
    seen: list[Scenario] = []
    for _ in range(2):
        budget(record(tmp_path)).spend(checking(seen), naive)
    assert max(Counter(map(repr, seen)).values()) <= 3  # the smallest ones may come in each of the three portions


def test_what_passed_examples_have_shown_of_other_laws_is_kept(naive: Trial, tmp_path: Path) -> None:
    shown = []
    for _ in range(2):
        others = Others([MEAN, START])
        budget(record(tmp_path), others=others).spend(others.join(MEAN), naive)
        shown.append(others.shown)
    assert shown[0] == shown[1] == {sentence(START): 50}


RIGHT = """
import contextlib
from torch import distributed as dist

class Mine:
    claims = {"accumulation": False}

    def __init__(self, module):
        self.module = module
        for parameter in module.parameters():
            dist.broadcast(parameter.data, src=0)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def finish_gradient_synchronization(self):
        from mean import divide
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                divide(parameter.grad)
"""
DIVIDES = "import torch\n\ndef divide(gradient):\n    gradient /= torch.distributed.get_world_size()\n"
CHANGES = {
    "its file": ("mine.py", RIGHT.replace("divide(parameter.grad)", "pass")),
    "what it imports": ("mean.py", "def divide(gradient): ...\n"),
    "its claims": ("mine.py", RIGHT.replace("False}", 'False, "evaluates": False}')),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_has_changed_since_it_passed_is_run_again(
    naive: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(RIGHT)
    (tmp_path / "mean.py").write_text(DIVIDES)

    def spend() -> tuple[list[Scenario], bool]:
        seen, kept = list[Scenario](), record(tmp_path / "record")
        name = f"{tmp_path / 'mine.py'}:Mine"
        kept.sources(name)
        world = SimWorld()
        try:
            (mine,) = look_up([name], world)
            return seen, bool(budget(kept).spend(checking(seen), Trial(mine, world)).failures)
        finally:
            world.close()

    seen, failed = spend()
    assert seen
    assert not failed
    assert spend() == ([], False)
    file, text = CHANGES[what]
    (tmp_path / file).write_text(text)
    seen, failed = spend()
    assert seen
    assert failed == (what != "its claims")


def test_what_is_changed_while_it_is_run_is_not_kept(tmp_path: Path) -> None:
    file, kept = tmp_path / "mine.py", record(tmp_path / "record")
    file.write_text(RIGHT)
    kept.sources(f"{file}:Mine")
    file.write_text(CHANGES["its file"][1])
    kept.keep("a law", 0, f"{file}:Mine", {"wanted": 1})
    assert len((tmp_path / "record" / "record.jsonl").read_text().splitlines()) == 1


def test_sources_are_those_of_the_user_s_own_tree_as_far_as_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    texts = {
        "__init__": "",
        "wrapper": "import torch, lockstep.impls.naive\nfrom . import parts\nfrom .deep.er import Some\nraise OSError",
        "parts": "import my_package.lonely as only",
        "lonely": "def broken(:",
        "unused": "",
        "deep/__init__": "from ..nowhere import found",
        "deep/er": "from .. import parts, wrapper",
    }
    for module, text in texts.items():
        file = tmp_path / "my_package" / f"{module}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = sources("my_package.wrapper:Mine")
    expected = ("", ".wrapper", ".parts", ".lonely", ".deep", ".deep.er")
    assert set(found) == {f"my_package{module}" for module in expected}
    assert "my_package" not in sys.modules
    assert sources("nowhere.to_be:Found") == sources("lockstep.impls.naive:NaiveAccumulation") == {}
    assert set(sources("hypothesis.control:target")) > {"hypothesis", "hypothesis.control"}


def test_what_fails_is_not_kept_and_fails_again(sim: World, naive: Trial, tmp_path: Path) -> None:
    (wrong,) = look_up(["lockstep.impls.hook:HookDataParallel"], sim)
    for _ in range(2):
        assert budget(record(tmp_path)).spend(MEAN, Trial(wrong, sim)).failures
    kept = [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]
    assert len(kept) == len({(line.get("of"), line.get("portion")) for line in kept})


def test_a_line_cut_off_by_the_end_of_a_process_is_run_again(tmp_path: Path) -> None:
    record(tmp_path).keep("a law", 0, NAIVE, {"wanted": 1})
    file = tmp_path / "record.jsonl"
    file.write_text(file.read_text() + '{"of": "a law", "por')
    again = record(tmp_path)
    assert again.done("a law", 0, NAIVE)
    again.keep("a law", 1, NAIVE, {"wanted": 1})
    assert record(tmp_path).done("a law", 1, NAIVE)


def test_a_record_has_one_seed_and_is_lockstep_s_own(tmp_path: Path) -> None:
    assert run_seed("7", "nightly", Record(tmp_path)) == "7"
    assert run_seed(None, "nightly", Record(tmp_path)) == "7"
    with pytest.raises(Unusable, match="its run has the seed 7, not 8"):
        run_seed("8", "nightly", Record(tmp_path))
    (tmp_path / "record.jsonl").write_text("notes\n")
    with pytest.raises(Unusable, match=r"line 1 of record.jsonl is no record of Lockstep's: 'notes'"):
        Record(tmp_path)


def test_a_summary_has_the_seed_of_its_run_whether_the_run_began_or_went_on(tmp_path: Path) -> None:
    for _ in range(2):
        record(tmp_path).keep_summary(["a line"], [])
        assert json.loads((tmp_path / "summary.json").read_text()) == {"seed": "7", "verdicts": []}
        assert (tmp_path / "summary.txt").read_text() == "a line\n"


def test_a_profile_that_is_not_there_and_a_record_that_cannot_be_are_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="profile weekly: give one of dev, ci, release, nightly"):
        run_seed(None, "weekly", None)
    (tmp_path / "file").touch()
    with pytest.raises(Unusable, match=r"--record .*: (File exists|Not a directory): .*; name a folder to write to"):
        Record(tmp_path / "file" / "folder")
    with pytest.raises(Unusable, match=r"--record /proc/self/fdinfo: .*: .*record.jsonl; name a folder to write to"):
        Record(Path("/proc/self/fdinfo")).begin(None)  # nobody may write there
    (tmp_path / "record.jsonl").write_bytes(b"{\xff")
    with pytest.raises(
        Unusable, match=r"--record .*: byte 1 of record.jsonl is 0xff, which is no UTF-8; name a folder"
    ):
        Record(tmp_path)


def test_only_long_runs_and_records_draw_a_seed_of_their_own(tmp_path: Path) -> None:
    assert run_seed(None, "dev", None) is None
    assert run_seed(None, "ci", Record(tmp_path)) is None
    for profile in ("release", "nightly"):
        assert run_seed(None, profile, None) not in (None, run_seed(None, profile, None))


def test_many_implementations_share_the_examples_of_a_short_run() -> None:
    assert [examples(False, count, "dev") for count in (1, 3, 15, 1000)] == [100, 100, 2, 1]
    assert [examples(True, count, "dev") for count in (1, 15, 1000)] == [10, 1, 1]
    assert [examples(real, 15, "ci") for real in (False, True)] == [3, 1]
    assert [examples(real, 15, "release") for real in (False, True)] == [500, 50]
    assert [examples(real, 15, "nightly") for real in (False, True)] == [5000, 500]


def test_what_is_slow_is_spared_in_short_runs_alone() -> None:
    """On sim; on real processes everything is."""
    assert [examples(False, 1, short, slow=True) for short in ("dev", "ci")] == [10, 50]
    assert [examples(False, 1, long, slow=True) for long in LONG] == [500, 5000]
    assert examples(True, 1, "release", slow=True) == 50


def test_a_long_law_says_how_far_it_is(naive: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "TELL_EVERY", 0.0)
    told: list[str] = []
    budget(say=told.append).spend(MEAN, naive)
    assert told[9].startswith("P1 gradients equal the mean over ranks: NaiveAccumulation on sim: 9 of 50 examples, ")


class Item:
    """A test of pytest's, as far as it matters here."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


ITEMS: list[Any] = [Item(f"test_{law}[Naive-{world}]") for law in range(7) for world in ("sim", "gloo")]


@pytest.mark.parametrize("parts", range(1, 9))
def test_the_parts_of_a_run_are_all_of_it_and_even_on_every_world(parts: int) -> None:
    shards = [part(f"{each}/{parts}", ITEMS) for each in range(1, parts + 1)]
    assert sorted((item for shard in shards for item in shard), key=ITEMS.index) == ITEMS
    for world in ("sim", "gloo"):
        sizes = [sum(world in item.nodeid for item in shard) for shard in shards]
        assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("shard", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_part_that_there_is_not_is_refused_in_one_line(shard: str) -> None:
    with pytest.raises(Unusable, match=f"--shard {shard}: write I/N"):
        part(shard, ITEMS)
