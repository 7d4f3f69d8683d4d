"""`--impl` takes kernels as it takes data parallelism: what they have is held against them, and nothing else is."""

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from lockstep.properties import test_kernels as laws
from lockstep.properties.kernels import cases
from lockstep.properties.kernels import law as law_of_kernels
from lockstep.properties.kernels.case import Case, Tensor  # noqa: F401  # evaluated
from lockstep.properties.kernels.law import kernel_law
from lockstep.properties.kernels.steps import Shard, check_pieces
from lockstep.properties.kernels.under_test import Kernels, look_up_kernels
from lockstep.properties.law import as_sentence
from lockstep.properties.tests import user_kernels
from lockstep.worlds.contract import World

ROOT = Path(__file__).parents[3]


def test_user_kernels_meet_the_laws_of_what_they_have() -> None:
    name = "properties/tests/user_kernels.py:SomeKernels"
    command = [sys.executable, "-m", "pytest", "properties", "--impl", name, "--world", "sim", "-v", "-p", "no:xdist"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    verdicts = dict(
        re.split(r"  +", re.sub(r"^  (P\d+) +", r"\1 ", line))
        for line in ran.stdout.splitlines()
        if line.startswith("  P")
    )
    ends = {law: re.fullmatch(r"(.*) on one process \((\d+)\)", verdict) for law, verdict in verdicts.items()}
    held = {law: end[1] for law, end in ends.items() if end and int(end[2]) > 1}
    assert held == {
        "P17 pack puts every element at its place": "holds",
        "P17 unpack after pack is the identity": "holds",
        "P17 elements may be further apart than 2 to the 31": "holds",
        "P17 the norm of a list is the norm of its concatenation": "wrong",
        "P17 a norm repeats its bits": "holds",
    }, ran.stdout[-3000:]
    assert sum(int(end[2]) for end in ends.values() if end) == int(re.findall(r"(\d+) examples[;,]", ran.stdout)[-1])
    assert verdicts["P17 a cast rounds to nearest even and keeps nan and infinity"] == "not claimed"
    assert verdicts["P17 pack casts and scales with one rounding"] == "not claimed"
    assert verdicts["P4 replicas are bitwise equal after construction and after every step"] == "not claimed"
    assert ran.returncode == 1


def holding(name: str, world: World) -> list[str]:
    """The laws that these kernels are held to, and keep, on few examples."""
    kernels = look_up_kernels(f"lockstep.properties.tests.user_kernels:{name}", world)
    held = []
    for law in vars(laws).values():
        if hasattr(law, "kernel_law"):
            filed: dict[str, Any] = {}
            with mock.patch.object(law_of_kernels, "INTERPRETED", settings().max_examples // 10):
                law(kernels, lambda _, value, filed=filed: filed.update(value))
            assert filed["verdict"] in ("holds", "not claimed")
            held += [filed["law"]] if filed["verdict"] == "holds" else []
    return held


def test_kernels_with_few_arguments_are_held_to_no_more(sim: World) -> None:
    held = holding("FewArguments", sim)
    assert "a fused step of sgd is inside its enclosure" in held
    assert "a step of adamw on pieces of a shard is the step on the whole" in held
    assert len(held) == 11


@pytest.mark.parametrize("name", ["ClipsAsTorchDoes", "ClipsInFloat64", "DividesToClip"])
def test_a_coefficient_may_be_computed_in_other_ways_than_ours(sim: World, name: str) -> None:
    """A product with a rounded reciprocal, in float64, or what gradients are divided by."""
    held = holding(name, sim)
    assert "clipping goes by the norm of the averaged gradient" in held
    assert len(held) == 11 + hasattr(getattr(user_kernels, name), "clip_coefficient")


def test_one_argument_of_several_is_held(sim: World) -> None:
    held = holding("OneFactor", sim)
    assert "pack casts and scales with one rounding" in held
    assert "unpack averages and casts with one rounding" in held
    assert "average scale and clip are one pass in place" in held
    assert len(held) == 6


def test_which_nan_a_step_gives_may_depend_on_where_a_shard_is_cut(sim: World) -> None:
    """Torch's vectorized loops give others than what is left over at the end of a vector."""
    shard = Shard(8, param="float32", grad="float16", cuts=(1,), kind="nan")
    check_pieces(look_up_kernels("lockstep.properties.tests.user_kernels:FewArguments", sim), shard, "sgd_step")


def test_a_kernel_that_raises_is_told_in_one_line_first(sim: World) -> None:
    kernels = look_up_kernels("lockstep.properties.tests.user_kernels:Raises", sim)
    for law, words in (
        (
            laws.test_a_fused_step_of_sgd_is_inside_its_enclosure,
            "sgd_step(param=bfloat16 (0,), master=float32 (0,), grad=float32 (0,), lr=0.125) "
            "raised ValueError: no torch.float32",
        ),
        (
            laws.test_the_norm_of_a_list_is_the_norm_of_its_concatenation,
            "norm(tensors=[float32 ()]) raised RuntimeError: device-side assert",
        ),
    ):
        with pytest.raises(pytest.fail.Exception) as failure:
            law(kernels, lambda *_: None)
        first, _, says, *rest = str(failure.value).splitlines()
        assert first == "Raises breaks P17: wrong"
        assert says == f"The law:   {as_sentence(law.__name__)}"
        told = " ".join("\n".join(rest).partition("\nAs a script:")[0].split())
        assert told.startswith(f"Result: {words} Traceback (most recent call last): ")
        assert re.search(r" Case: (Shard|Case)\(.*\)$", told)


@pytest.mark.parametrize(
    ("drawn", "shown"),
    [
        (
            cases.bucketed(Tensor((4160,)), divisor=2.0),
            "Case((Tensor((4160,)),), bucket=Tensor((4160,), seed=97), divisor=2.0)",
        ),
        (Shard(8, cuts=(1,), kind="nan"), "Shard(8, cuts=(1,), kind='nan')"),
    ],
)
def test_what_is_drawn_is_shown_without_what_is_usual_and_evaluates_back(drawn: Any, shown: str) -> None:
    assert repr(drawn) == shown
    assert eval(shown) == drawn


def test_a_case_that_is_always_tried_is_made_small_and_ends_with_a_script(
    sim: World, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = look_up_kernels("lockstep.properties.tests.user_kernels:ForgetsStrides", sim)
    for law, case, printed in (
        (
            laws.test_pack_puts_every_element_at_its_place,
            "Case((Tensor((2, 2), order=(0, 1)),), bucket=Tensor((4,), seed=97))",
            "tensor([-120.,  -46.,  -83.,   -9.])",  # where it must be -120, -83, -46, -9
        ),
        (
            laws.test_average_scale_and_clip_are_one_pass_in_place,
            "Case((Tensor(()), Tensor(())), bucket=Tensor((2,), seed=97), divisor=7.0)",
            "[tensor(-17.1429), tensor(-120.)]",
        ),
    ):
        filed: dict[str, Any] = {}
        with pytest.raises(pytest.fail.Exception) as failure:
            law(kernels, lambda _, value, filed=filed: filed.update(value))
        (told,) = filed["failures"]
        assert told["scenario"] == case
        lines = str(failure.value).partition("As a script:\n")[2]
        exec("\n".join(line.removeprefix("    ") for line in lines.splitlines()), {})
        assert capsys.readouterr().out == f"{printed}\n"


@pytest.mark.parametrize("broken", [AssertionError, RuntimeError])
def test_what_lockstep_gets_wrong_itself_is_not_held_against_a_kernel(sim: World, broken: type[Exception]) -> None:
    def test_nothing(kernels: Kernels, drawn: None) -> None:
        raise broken("lost")

    filed: dict[str, Any] = {}
    with pytest.raises(pytest.fail.Exception if broken is AssertionError else RuntimeError):
        kernel_law(st.none(), {})(test_nothing)(
            look_up_kernels("lockstep.properties.tests.user_kernels:FewArguments", sim),
            lambda _, value: filed.update(value),
        )
    assert filed["verdict"] == ("wrong" if broken is AssertionError else "not judged: error in Lockstep")
    assert filed["examples"] == (1 if broken is AssertionError else 0)


def test_what_is_wrong_now_and_then_is_wrong(sim: World) -> None:
    """As a race is: the same case passes when it is run again."""
    calls = itertools.count()

    def test_nothing(kernels: Kernels, drawn: int) -> None:
        if next(calls) == 3:
            raise AssertionError("lost")

    kernels, filed = look_up_kernels("lockstep.properties.tests.user_kernels:FewArguments", sim), dict[str, Any]()
    with pytest.raises(pytest.fail.Exception, match="FewArguments breaks P17: wrong"):
        kernel_law(st.integers(), {})(test_nothing)(kernels, lambda _, value: filed.update(value))
    assert filed["verdict"] == "wrong"
