"""What kernels refuse, and what they do with nothing; their results are held to the laws in `properties`."""

import pytest
import torch

from lockstep.impls.kernels.norm import clip_coefficient, norm
from lockstep.impls.kernels.pack import cast, pack, unpack
from lockstep.impls.kernels.scale import average_and_clip_, scale_
from lockstep.impls.kernels.step import adamw_step, sgd_step
from lockstep.impls.kernels.table import Table, collapse, overlaps

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # on CPU the suite runs them in Triton's interpreter


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


def test_an_empty_list_is_packed_unpacked_scaled_and_has_the_norm_zero() -> None:
    for tensors in ([], [zeros(0)], [zeros(0, 3), zeros(2, 0)]):
        pack(tensors, zeros(0))
        unpack(zeros(0), tensors, divisor=2.0)
        scale_(tensors, divisor=2.0)
        assert norm(tensors).item() == 0
        assert clip_coefficient(tensors, 1.0).item() == 1
        assert average_and_clip_(tensors, 2.0, 1.0).item() == 0


def test_a_step_on_an_empty_shard_does_nothing() -> None:
    sgd_step(zeros(0), zeros(0), zeros(0), lr=0.1)
    adamw_step(zeros(0), zeros(0), zeros(0), zeros(0), zeros(0), step=1, lr=0.1)


def test_the_norm_of_what_holds_nan_or_infinity_is_that_and_so_is_what_is_clipped_by_it() -> None:
    x = torch.tensor([1.0, torch.nan, 2.0], device=DEVICE)
    assert norm([x]).isnan()
    assert clip_coefficient([x], 1.0).isnan()
    y = torch.tensor([1.0, -torch.inf, 2.0], device=DEVICE)
    assert norm([y]).item() == torch.inf
    assert clip_coefficient([y], 1.0).item() == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pack([zeros(3)], zeros(4)), "of 3 elements"),
        (lambda: pack([zeros(3)], zeros(6)[::2]), "must be contiguous"),
        (lambda: pack([zeros(4)], zeros(2, 2)), "must be contiguous"),
        (lambda: pack([zeros(3), zeros(3, dtype=torch.float64)], zeros(6)), "float64 is not for this kernel"),
        (lambda: pack([zeros(3, dtype=torch.int32)], zeros(3)), "int32 is not for this kernel"),
        (lambda: pack([zeros(3, dtype=torch.int32)], zeros(3, dtype=torch.int32), 0.5), "int32 is not"),
        (lambda: pack([zeros(3)], zeros(3), coefficient=zeros(2)), "must be one float32"),
        (lambda: pack([zeros(3)], zeros(3), coefficient=zeros(1, dtype=torch.float64)), "must be one float32"),
        (lambda: pack(Table.of([zeros(3)], raw=True), zeros(3), 0.5), "for moving only"),
        (lambda: unpack(zeros(6), [zeros(1, 3).expand(2, 3)]), "share memory"),
        (lambda: scale_([zeros(1).expand(4)], divisor=2.0), "share memory"),
        (lambda: pack([zeros(3, dtype=torch.complex64).conj()], zeros(3, dtype=torch.complex64)), "conjugate"),
        (lambda: clip_coefficient([zeros(3)], -1.0), "max_norm -1.0 must be at least 0"),
        (lambda: clip_coefficient([zeros(3)], float("nan")), "max_norm nan must be at least 0"),
        (lambda: sgd_step(zeros(3), zeros(3), zeros(4), lr=0.1), "of 3 elements"),
        (lambda: sgd_step(zeros(3), zeros(3, dtype=torch.bfloat16), zeros(3), lr=0.1), "masters and optimizer state"),
        (lambda: sgd_step(zeros(3), zeros(3), zeros(3), lr=0.1, momentum=0.9), "give both or neither"),
        (lambda: adamw_step(*(zeros(3) for _ in range(5)), step=0, lr=0.1), "step 0 must be at least 1"),
        (lambda: Table.of([zeros(3)]).at([zeros(4)]), "make a new table"),
        (lambda: Table.of([zeros(3)]).at([zeros(6)[::2]]), "make a new table"),
        (lambda: Table.of([zeros(3)]).at([]), "has 1 tensors, not 0"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(call, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refusal:
        call()
    assert "\n" not in str(refusal.value)


def test_a_table_serves_other_tensors_of_the_same_layout() -> None:
    first, second = ([torch.arange(6.0, device=DEVICE) + k, torch.full((2, 2), 9.0 + k, device=DEVICE)] for k in (0, 1))
    table, bucket = Table.of(first, raw=True), zeros(10)
    pack(table.at(second), bucket)
    assert bucket.tolist() == [1, 2, 3, 4, 5, 6, 10, 10, 10, 10]
    pack(table, bucket)
    assert bucket.tolist() == [0, 1, 2, 3, 4, 5, 9, 9, 9, 9]


def test_a_cast_keeps_shape_and_every_pattern_of_16_bits_on_its_way_through_float32() -> None:
    words = torch.arange(-(2**15), 2**15, device=DEVICE).to(torch.int16).view(256, 256)
    for dtype in (torch.bfloat16, torch.float16):
        narrow = words.view(dtype)
        back = cast(cast(narrow, torch.float32), dtype)
        assert back.shape == narrow.shape
        number = ~narrow.isnan()
        assert torch.equal(back.view(torch.int16)[number], words[number])
        assert back.isnan().sum() == (~number).sum() > 0


def test_dimensions_that_lie_behind_each_other_are_one() -> None:
    assert collapse((2, 3, 4), (12, 4, 1)) == [(24, 1)]
    assert collapse((2, 3, 4), (24, 8, 2)) == [(24, 2)]
    assert collapse((2, 3, 4), (1, 2, 6)) == [(4, 6), (3, 2), (2, 1)]
    assert collapse((5, 1, 1), (2, 77, 99)) == [(5, 2)]
    assert collapse((3, 4), (0, 0)) == [(12, 0)]


def test_overlapping_elements_are_seen() -> None:
    assert not overlaps(zeros(4, 6)[::2, 1:3].t())
    assert overlaps(zeros(3, 1).expand(3, 2))
    assert overlaps(zeros(9).as_strided((3, 3), (2, 1)))
    assert not overlaps(zeros(0, 1).expand(0, 2))
