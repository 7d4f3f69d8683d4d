"""What is wrong with a target is said in one clear line, quickly, and nothing stays behind."""

import functools
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest

from lockstep.properties.claim import Shape
from lockstep.properties.claims import Claims, read_claims
from lockstep.properties.implementations import KERNELS, WRAPPERS, Unusable, look_up, try_out
from lockstep.worlds.contract import World
from lockstep.worlds.tests.outcomes import gone
from lockstep.worlds.tests.users import marked

ROOT = Path(__file__).parents[3]
USER = "lockstep.properties.tests.user_code"

REFUSED: dict[str, tuple[str, str]] = {
    "unknown module": ("nowhere.to_be:Found", "there is no module 'nowhere' on sys.path"),
    "unknown submodule": ("lockstep.impls.nowhere:Found", "there is no module 'lockstep.impls.nowhere' on sys.path"),
    "unknown attribute": (
        "lockstep.impls.naive:NaiveDP",
        "lockstep.impls.naive has no attribute 'NaiveDP'; it defines NaiveAccumulation, NaiveD",
    ),
    "not callable": (f"{USER}:not_callable", "not_callable is 3, which cannot be called"),
    "no colon": ("lockstep.impls.naive", "write package.module:attribute or path/to/file.py:attribute"),
    "no attribute": ("lockstep.impls.naive:", "write package.module:attribute or path/to/file.py:attribute"),
    "no module": (":Naive", "write package.module:attribute or path/to/file.py:attribute"),
    "no file": ("not/there.py:Found", "there is no such file"),
    "unknown claim": (f"{USER}:ClaimsTheImpossible", "there is no claim 'magic'; there are hook_order, "),
    "claims in a list": (f"{USER}:ClaimsInAList", 'claims is a dict, such as {"unused": "zero"}, not [\'unused\']'),
    "a text of claims": (f"{USER}:ClaimsInAText", 'claims is a dict, such as {"unused": "zero"}, not \'unused\''),
    "a number of claims": (f"{USER}:ClaimsFive", 'claims is a dict, such as {"unused": "zero"}, not 5'),
    "claims a function": (
        f"{USER}:ClaimsAFunction",
        "claims: joins is a plain value of Python's, not <function bare",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_put_under_test_is_refused_in_one_line_that_names_it(sim: World, what: str) -> None:
    name, words = REFUSED[what]
    with pytest.raises(Unusable, match=re.escape(words)) as refused:
        look_up([name], sim)
    assert str(refused.value).startswith(name.removesuffix(":Found") if ".py" in name else name)
    assert "\n" not in str(refused.value)


MISCALLED = {
    "NeedsAGroup": "it is called as NeedsAGroup(module), and NeedsAGroup.__init__() missing 1 required positional "
    "argument: 'group'; name a function that takes the module and fills in the rest",
    "TakesNothing": "it is called as TakesNothing(module), and TakesNothing() takes no arguments",
    "NeedsBoth": "it is called as NeedsBoth(module, bucket_cap_mb=25), and NeedsBoth.__init__() missing 1 required",
    "gives_nothing": "gives_nothing(module) gives None, which cannot be called",
    "gives_a_list": "gives_a_list(module) gives [Probe(",
    "SetsNoSync": "accumulation needs a method no_sync, and that of SetsNoSync(module) is True",
    "makes_no_sync": "accumulation needs a method no_sync, and that of makes_no_sync(module) is None",
}


@pytest.mark.parametrize("name", MISCALLED)
def test_what_cannot_be_called_as_it_is_to_be_is_refused_in_one_line(sim: World, name: str) -> None:
    with pytest.raises(Unusable, match=re.escape(f"{USER}:{name}: ")) as refused:
        try_out(look_up([f"{USER}:{name}"], sim), sim)
    assert MISCALLED[name] in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_fails_otherwise_or_describes_itself_oddly_is_left_to_the_laws(sim: World) -> None:
    names = ("RefusesToBeBuilt", "RaisesATypeError", "fills_in", "bare", "WaitsForNobody", "LentParameters")
    try_out(look_up([*(f"{USER}:{name}" for name in names), *KERNELS, *WRAPPERS], sim), sim)


FILES = {
    "raises": ("raise OSError('no such driver')", "OSError: no such driver"),
    "imports": ("import nothing_like_it", "No module named 'nothing_like_it'"),
    "exits": ("raise SystemExit(4)", "SystemExit: 4"),
    "garbled": ("x = 1\ndef broken(:", "somebodys_garbled.py, line 2)"),
    "says more": ("raise OSError('no such driver\\n  here')", "OSError: no such driver here"),
    "ends at once": ("import os\nprint('no license')\nos._exit(3)", "code 3; its output ends with 'no license'"),
}


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_fails_on_import_is_refused_with_what_it_raised(sim: World, tmp_path: Path, what: str) -> None:
    text, words = FILES[what]
    file = tmp_path / f"somebodys_{what}.py"
    file.write_text(text)
    for _ in range(2):  # it is no better the second time
        with pytest.raises(Unusable, match=re.escape(words)) as refused:
            look_up([f"{file}:Mine"], sim)
        assert str(refused.value).startswith(str(file))
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("stem", ["somebodys", "json", "torch"])
def test_files_of_one_name_in_several_folders_are_told_apart_and_from_modules_of_that_name(
    sim: World, tmp_path: Path, stem: str
) -> None:
    for folder in ("one", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{stem}.py").write_text(f"def {folder}(module):\n    return module\n")
        (found,) = look_up([f"{tmp_path / folder / stem}.py:{folder}"], sim)
        assert found.short == folder


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"unused": "dropped"}, "unused is None or one of 'untouched', 'zero', not 'dropped'"),
        ({"averaging": "median"}, "averaging is one of 'any way', 'sum then divide'"),
        ({"accumulation": True}, "accumulation needs a method no_sync"),
        ({"joins": ("world size",)}, "joins needs a method join"),
        ({"joins": ("the moon",)}, "joins is a tuple of some of 'world size', 'remaining ranks', not ('the moon',)"),
        ({"replicas": True}, "replicas needs a constructor argument replicas"),
        ({"bucket_cap": True}, "bucket_cap needs a constructor argument"),
        ({"hook_orders": True}, "there is no claim 'hook_orders'; did you mean 'hook_order'?"),
        ({"buffer": "each"}, "there is no claim 'buffer'; did you mean 'buffers'?"),
        ({3: True}, "there is no claim 3; there are hook_order, several_forwards"),
        ({"several_dtypes": "no"}, "several_dtypes is True or False, not 'no'"),
        ({"accumulation": "no"}, "accumulation is True or False, not 'no'"),
        ({"exact_memory": "x"}, "exact_memory is True or False, not 'x'"),
        ({"hook_order": None}, "hook_order is True or False, not None"),
        ({"bucket_cap": 0}, "bucket_cap is True or False, not 0"),
        ({"stage": True}, "stage is None or a whole number, not True"),
        ({"stage": 1.0}, "stage is None or a whole number, not 1.0"),
        ({"stage": 4}, "stage is None or a ZeRO stage from 0 to 3, not 4"),
        ({"most_ranks": 2.5}, "most_ranks is a whole number, not 2.5"),
        ({"most_ranks": "4"}, "most_ranks is a whole number, not '4'"),
        ({"most_ranks": 0}, "most_ranks is at least 1, not 0"),
        ({"joins": 5}, "joins is a tuple of some of 'world size', 'remaining ranks', not 5"),
        ({"joins": "world size"}, "joins is a tuple of some of 'world size', 'remaining ranks', not 'world size'"),
        ({"collectives": ([],)}, "collectives is a tuple of some of 'all_reduce', 'broadcast', "),
        ({"reduce_dtype": ["float32"]}, "reduce_dtype is None or one of 'float32', 'float64', not ['float32']"),
        ({"wire_dtype": "float8"}, "wire_dtype is None or one of 'bfloat16', 'float16', not 'float8'"),
        (
            {"wire_dtype": "float16", "reduce_dtype": "float32"},
            "wire_dtype 'float16' goes with no reduce_dtype and no gradient_dtype, not with 'float32' and None",
        ),
        ({"schedule": "once", "stage": 1}, "schedule is None or one of 'reduce-scatter', 'all-reduce', "),
        ({"equal_from": "now"}, "equal_from is one of 'construction', 'first forward', not 'now'"),
        ({"masters": "sometimes"}, "masters is one of False, True, 'always', not 'sometimes'"),
        ({"masters": "always"}, "masters 'always' goes with a stage"),
        ({"equal_from": "first forward", "stage": 1}, "equal_from 'first forward' goes with no stage, not with 1"),
        ({"cap_from": "step 2"}, "cap_from is one of 'third step', 'first step', not 'step 2'"),
        ({"unused": "x" * 1000}, "not 'xxx"),
    ],
)
def test_a_claim_that_cannot_be_is_refused(declared: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as refused:
        read_claims(declared, Shape(has_no_sync=False, takes_cap=False))
    assert "\n" not in str(refused.value)
    beside_the_list = str(refused.value).replace(", ".join(field.name for field in fields(Claims)), "")
    assert len(beside_the_list) < 500


def test_code_that_declares_nothing_claims_what_its_shape_says() -> None:
    assert read_claims(None, Shape(has_no_sync=False, takes_cap=False)) == Claims(accumulation=False)
    assert read_claims(None, Shape(has_no_sync=True, takes_cap=True)) == Claims(accumulation=True, bucket_cap=True)
    assert read_claims({"bucket_cap": False}, Shape(has_no_sync=True, takes_cap=True)) == Claims(bucket_cap=False)
    assert read_claims(None, Shape(has_no_sync=True, takes_cap=False, zeroes_otherwise=True)) == Claims(
        drops_windows=False
    )
    assert (
        read_claims({"drops_windows": True}, Shape(has_no_sync=True, takes_cap=False, zeroes_otherwise=True))
        == Claims()
    )
    assert read_claims(None, Shape(has_no_sync=True, takes_cap=False, takes_keywords=True)) == Claims(
        keyword_inputs=True
    )
    assert read_claims(None, Shape(has_no_sync=True, takes_cap=False, finishes=False)) == Claims(
        callers_collectives=True
    )
    assert read_claims(None, Shape(has_no_sync=True, takes_cap=False, finishes=None)) == Claims()


def test_the_weights_are_the_callers_to_swap_where_nothing_else_is_the_implementations() -> None:
    assert read_claims({"stage": 0}, Shape(True, False)).swaps_weights
    assert not read_claims({"stage": 2}, Shape(True, False)).swaps_weights
    assert read_claims({"stage": 2, "swaps_weights": True}, Shape(True, False)).swaps_weights
    assert not read_claims(None, Shape(True, False, makes_optimizer=True)).swaps_weights
    assert not read_claims({"stage": 2, "swaps_weights": True}, Shape(True, False)).writes_weights


def test_several_optimizers_are_claimed_of_what_makes_none_unless_it_says_otherwise() -> None:
    assert read_claims({"stage": 2}, Shape(True, False)).several_optimizers
    assert not read_claims(None, Shape(True, False, makes_optimizer=True)).several_optimizers
    assert read_claims({"several_optimizers": True}, Shape(True, False, makes_optimizer=True)).several_optimizers


def test_a_group_is_claimed_of_what_can_be_given_one() -> None:
    """Of what declares other things, too: they say nothing of it."""
    assert read_claims(None, Shape(has_no_sync=True, takes_cap=False, takes_group=True)) == Claims(subgroups=True)
    assert read_claims({"tied_parameters": True}, Shape(True, False, takes_group=True)) == Claims(
        tied_parameters=True, subgroups=True
    )
    assert read_claims({"subgroups": False}, Shape(True, False, takes_group=True)) == Claims()
    with pytest.raises(ValueError, match="subgroups needs a constructor argument process_group or group that may be"):
        read_claims({"subgroups": True}, Shape(has_no_sync=True, takes_cap=False))


def test_what_a_function_makes_has_what_the_function_says_and_nothing_else() -> None:
    assert read_claims(None, Shape(has_no_sync=None, takes_cap=False, has_join=None)) == Claims(accumulation=False)
    declared = {"accumulation": True, "joins": ("world size",)}
    assert read_claims(declared, Shape(None, False, None)) == Claims(accumulation=True, joins=("world size",))


def test_only_a_caller_who_makes_the_optimizer_can_replace_its_parameters() -> None:
    assert read_claims({"replaced_parameters": True}, Shape(False, False)).replaced_parameters
    with pytest.raises(ValueError, match="replaced_parameters is for optimizers that the caller makes"):
        read_claims({"replaced_parameters": True}, Shape(False, False, makes_optimizer=True))


def run_pytest(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and output of the law of the mean, run from a folder of its own. No process of it is left."""
    environment = {**os.environ, "PYTHONPATH": "", "CI": "", "TMPDIR": str(folder), "LOCKSTEP_TEST": str(folder)}
    law = str(ROOT / "properties" / "test_mean.py") + "::test_gradients_equal_the_mean_over_ranks"
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), law, "--world", "sim", *arguments]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert gone(marked(f"LOCKSTEP_TEST={folder}"))
    return run.returncode, run.stdout + run.stderr


def test_pytest_says_it_in_one_line_and_collects_nothing(tmp_path: Path) -> None:
    code, output = run_pytest(tmp_path, "--impl", "nowhere.to_be:Found")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert output.strip() == "ERROR: nowhere.to_be:Found: there is no module 'nowhere' on sys.path"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT], ids=str)
def test_an_interruption_before_anything_is_collected_is_told_in_one_line(tmp_path: Path, end: signal.Signals) -> None:
    text = "import time\nfrom pathlib import Path\nPath('begun').touch()\ntime.sleep(1000)\n"
    (tmp_path / "slow.py").write_text(text)
    setting = {"PYTHONPATH": "", "TMPDIR": str(tmp_path), "LOCKSTEP_TEST": str(tmp_path)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        str(ROOT / "pyproject.toml"),
        str(ROOT / "properties/test_mean.py"),
    ]
    with subprocess.Popen(
        [*command, "--impl", "slow.py:Mine"],
        cwd=tmp_path,
        env={**os.environ, **setting},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whoever runs this in the background may have had Ctrl-C ignored, which processes inherit.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as run:
        deadline = time.monotonic() + 300
        while not (tmp_path / "begun").exists() and time.monotonic() < deadline and run.poll() is None:
            time.sleep(0.02)
        run.send_signal(end)
        output, _ = run.communicate(timeout=300)
    assert output.strip() == "Exit: interrupted, before any law was held against anything"
    assert run.returncode == pytest.ExitCode.INTERRUPTED
    assert gone(marked(f"LOCKSTEP_TEST={tmp_path}"))


def test_what_refuses_and_what_hangs_is_told_without_a_traceback_beside_what_holds(tmp_path: Path) -> None:
    """Files and modules of one's own are found from where pytest was started; hanging takes the clock of gloo only."""
    (tmp_path / "mine.py").write_text("from lockstep.impls.naive import NaiveAccumulation as Mine\n")
    names = ("mine.py:Mine", "mine:Mine", f"{USER}:RefusesToBeBuilt", f"{USER}:WaitsForNobody")
    code, output = run_pytest(tmp_path, *(part for name in names for part in ("--impl", name)))
    assert code == pytest.ExitCode.TESTS_FAILED
    assert "Traceback" not in output
    verdicts = re.findall(r"gradients equal the mean over ranks +(.*)", output)
    counted = sorted(verdict.partition(" (")[0] for verdict in verdicts)  # how many examples is in brackets
    assert counted == ["broken by D1 on sim", "holds on sim", "holds on sim", "refuses on sim"]
    (told,) = {line for line in output.splitlines() if "refused all" in line}
    assert told.endswith("so nothing was checked: RuntimeError: this wrapper needs a GPU")
    assert "rank 0 waits for barrier" in output
