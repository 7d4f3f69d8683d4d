"""The tasks that kernels are measured on, each with what people use instead, and a device-to-device copy as the limit.

Everything that is compared takes turns on the same tensors. Several sets of tensors take turns, so that none stays in
cache. Table kept: made once, for tensors that stay; rebuilt: at every call; rebound: addresses only. `benchmarks.gpu`
measures them, `benchmarks.results` has the table.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl

from lockstep.benchmarks import model, peers
from lockstep.benchmarks.shapes import Shapes, even, gpt2, llama, mixed
from lockstep.benchmarks.timing import Call, compare, synchronize
from lockstep.impls.kernels.norm import norm
from lockstep.impls.kernels.pack import pack, unpack
from lockstep.impls.kernels.scale import average_and_clip_, scale_
from lockstep.impls.kernels.step import adamw_step, sgd_step
from lockstep.impls.kernels.table import Table

MIB = 2**20
SPREAD = 512 * MIB  # bytes over which a call's sets of tensors spread, far more than any cache holds
MOST = 2048 * MIB  # bytes of a list of which several copies are to lie beside each other
DIVISOR = 1 + 2**-10  # so little that after a thousand calls there is something left to divide
MAX_NORM = 1.0
ON_HOST = frozenset({"rebound", "rebuilt", "tensor by tensor"})  # what they do on the host is not in a graph
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Passes = list[tuple[model.Program, int]]


@dataclass(frozen=True)
class Contest:
    """One task: the bytes that must be ``moved``; calls by name, ours, and those of peers, the copy among them.

    ``copied``: bytes that the copy moves; ``sets``: how many sets of tensors there are; ``programs``: of ours, launch
    by launch, what each program needs and how many there are.
    """

    name: str
    moved: int
    copied: int
    ours: dict[str, Call]
    peers: dict[str, Call]
    sets: int
    programs: Passes


@triton.jit
def _copy_one(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The usual tutorial's kernel, for one tensor."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.load(source + offsets, offsets < count), offsets < count)


def random_set(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors of their own memory each, as a backward leaves them."""
    return [torch.randn(shape, device=DEVICE, dtype=dtype) for shape in shapes]


def movers(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> Iterator[Contest]:
    """Pack and unpack without arithmetic."""
    elements = sum(math.prod(shape) for shape in shapes)
    size = elements * dtype.itemsize
    sets = max(1, min(8, SPREAD // (2 * size)))
    lists = [random_set(shapes, dtype) for _ in range(sets)]
    buckets = [torch.empty(elements, device=DEVICE, dtype=dtype) for _ in range(sets)]
    tables = [Table.of(tensors, raw=True) for tensors in lists]
    views = [
        [part.view(shape) for part, shape in zip(bucket.split([math.prod(s) for s in shapes]), shapes, strict=True)]
        for bucket in buckets
    ]

    def by_tutorial(k: int) -> None:
        for tensor, view in zip(lists[k], views[k], strict=True):
            _copy_one[(triton.cdiv(tensor.numel(), 1024),)](tensor, view, tensor.numel(), BLOCK=1024)

    others = [torch.empty_like(bucket) for bucket in buckets]
    copy: dict[str, Call] = {"copy": lambda k: others[k].copy_(buckets[k])}
    programs = model.passes("move", dtype.itemsize, list(shapes))
    yield Contest(
        "pack",
        2 * size,
        2 * size,
        {
            "table kept": lambda k: pack(tables[k], buckets[k]),
            "rebound": lambda k: pack(tables[k].at(lists[k]), buckets[k]),
            "rebuilt": lambda k: pack(lists[k], buckets[k]),
        },
        {
            **copy,
            "torch.cat": lambda k: torch.cat([tensor.view(-1) for tensor in lists[k]], out=buckets[k]),
            "foreach copy": lambda k: torch._foreach_copy_(views[k], lists[k]),
            "tensor by tensor": by_tutorial,
            **(peers.scaled_copies(lists, views) if dtype == torch.float32 else {}),
        },
        sets,
        programs,
    )
    yield Contest(
        "unpack",
        2 * size,
        2 * size,
        {
            "table kept": lambda k: unpack(buckets[k], tables[k]),
            "rebuilt": lambda k: unpack(buckets[k], lists[k]),
        },
        {
            **copy,
            "foreach copy": lambda k: torch._foreach_copy_(lists[k], views[k]),
            "copy_": lambda k: [t.copy_(v) for t, v in zip(lists[k], views[k], strict=True)],
        },
        sets,
        programs,
    )


def arithmetic(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> Iterator[Contest]:
    """Average, norm, clip and cast of a list."""
    elements = sum(math.prod(shape) for shape in shapes)
    size = elements * dtype.itemsize
    sets = max(1, min(8, SPREAD // size))
    lists = [random_set(shapes, dtype) for _ in range(sets)]
    tables = [Table.of(tensors) for tensors in lists]
    parameters = [[torch.nn.Parameter(torch.empty_like(tensor)) for tensor in tensors] for tensors in lists]
    for mine, tensors in zip(parameters, lists, strict=True):
        for parameter, tensor in zip(mine, tensors, strict=True):
            parameter.grad = tensor
    flat = [torch.empty(elements, device=DEVICE, dtype=dtype) for _ in range(sets)]
    copy: dict[str, Call] = {"copy": lambda k: flat[k].copy_(flat[(k + 1) % sets]) if sets > 1 else flat[k].clone()}
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    narrow = [torch.empty(elements, device=DEVICE, dtype=other) for _ in range(sets)]

    def div_and_clip(k: int) -> None:
        torch._foreach_div_(lists[k], DIVISOR)
        torch.nn.utils.clip_grad_norm_(parameters[k], MAX_NORM, foreach=True)

    cast_size = size + elements * other.itemsize

    def passes(task: str) -> Passes:
        return model.passes(task, dtype.itemsize, list(shapes))

    yield Contest(
        "average in place",
        2 * size,
        2 * size,
        {"table kept": lambda k: scale_(tables[k], 1.0, 0.999)},
        {**copy, "foreach mul": lambda k: torch._foreach_mul_(lists[k], 0.999)},
        sets,
        passes("scale"),
    )
    yield Contest(
        "norm",
        size,
        2 * size,
        {"table kept": lambda k: norm(tables[k]), "rebuilt": lambda k: norm(lists[k])},
        {
            **copy,
            "foreach norm": lambda k: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(lists[k]))),
            **peers.norms(lists),
        },
        sets,
        passes("norm"),
    )
    yield Contest(
        "average and clip",
        3 * size,
        2 * size,
        {"table kept": lambda k: average_and_clip_(tables[k], 1.0, MAX_NORM)},
        {**copy, "clip_grad_norm_": lambda k: torch.nn.utils.clip_grad_norm_(parameters[k], MAX_NORM, foreach=True)},
        sets,
        passes("average and clip"),
    )
    yield Contest(
        "average by ranks and clip",
        3 * size,
        2 * size,
        {"table kept": lambda k: average_and_clip_(tables[k], DIVISOR, MAX_NORM)},
        {**copy, "div, clip_grad_norm_": div_and_clip},
        sets,
        passes("average and clip by ranks"),
    )
    yield Contest(
        f"cast to {str(other).removeprefix('torch.')} and pack",
        cast_size,
        2 * size,
        {"table kept": lambda k: pack(tables[k], narrow[k])},
        {
            **copy,
            "cat, to": lambda k: narrow[k].copy_(torch.cat([tensor.view(-1) for tensor in lists[k]])),
        },
        sets,
        passes("cast"),
    )


def steps(elements: int) -> Iterator[Contest]:
    """ZeRO's shard step on one flat shard."""
    size = elements * 4
    sets = max(1, min(4, SPREAD // size))
    shards = []
    for _ in range(sets):
        param = torch.randn(elements, device=DEVICE, dtype=torch.bfloat16)
        master, grad = param.float(), torch.randn(elements, device=DEVICE, dtype=torch.bfloat16)
        shards.append((param, master, grad, torch.zeros_like(master), torch.zeros_like(master)))
    fused = [torch.nn.Parameter(shard[1].clone()) for shard in shards]
    optimizers = [torch.optim.AdamW([parameter], lr=1e-3, fused=True) for parameter in fused]
    copies = [torch.empty_like(shard[1]) for shard in shards]

    def torch_step(k: int) -> None:
        fused[k].grad = shards[k][2].float()
        optimizers[k].step()
        shards[k][0].copy_(fused[k].data)

    copy: dict[str, Call] = {"copy": lambda k: copies[k].copy_(shards[k][1])}
    # bytes per element: gradient 2, parameter 2, and each float32 read and written
    yield Contest(
        "AdamW",
        elements * (2 + 2 + 3 * 8),
        8 * elements,
        {"one pass": lambda k: adamw_step(*shards[k], step=10, lr=1e-3, weight_decay=0.01)},
        {**copy, "cast, fused AdamW, cast": torch_step},
        sets,
        model.passes("adamw", 4, [(elements,)]),
    )
    yield Contest(
        "SGD with momentum",
        elements * (2 + 2 + 2 * 8),
        8 * elements,
        {"one pass": lambda k: sgd_step(*shards[k][:4], lr=1e-3, momentum=0.9)},
        copy,
        sets,
        model.passes("sgd", 4, [(elements,)]),
    )


@dataclass(frozen=True)
class Unit:
    """Contests on the same tensors, measured in one go and filed under their ``name``."""

    name: str
    make: Callable[[], Iterator[Contest]]


def units(sizes: Sequence[float], tensors: int = 1000) -> Iterator[Unit]:
    """Sizes in MiB, with one tensor and with many of mixed sizes; real models; optimizer steps."""
    for label, dtype, shapes in lists(sizes, tensors):
        yield Unit(f"{label}: moving", partial(movers, shapes, dtype))
        if sum(math.prod(shape) for shape in shapes) * dtype.itemsize <= MOST:
            yield Unit(f"{label}: arithmetic", partial(arithmetic, shapes, dtype))
    for size in sizes:
        if size * MIB <= MOST:
            yield Unit(f"{size:g} MiB of masters: steps", partial(steps, int(size * MIB) // 4))


def lists(sizes: Sequence[float], tensors: int) -> Iterator[tuple[str, torch.dtype, Shapes]]:
    """Label, dtype and shapes of each list of tensors."""
    for dtype in (torch.float32, torch.bfloat16):
        words = str(dtype).removeprefix("torch.")
        for size in sizes:
            elements = int(size * MIB) // dtype.itemsize
            yield f"{size:g} MiB {words}, 1", dtype, even(elements, 1)
            yield f"{size:g} MiB {words}, {tensors} mixed", dtype, mixed(elements, tensors)
    size = sizes[len(sizes) // 2]
    odd = even(int(size * MIB) // 2 // tensors * tensors + tensors, tensors)
    yield f"{size:g} MiB bfloat16, {tensors} odd", torch.bfloat16, [(shape[0] | 1,) for shape in odd]
    for label, dtype, shapes in (("GPT-2", torch.float32, gpt2()), ("Llama 1B", torch.bfloat16, llama())):
        if sizes[-1] >= 64:
            yield f"{label} {str(dtype).removeprefix('torch.')}, {len(shapes)}", dtype, shapes


def measure(unit: Unit) -> Iterator[dict[str, Any]]:
    """The unit's contests, each with what everybody took and what ours should take, in seconds."""
    for contest in unit.make():
        everybody = {**contest.ours, **contest.peers}
        captured = frozenset(everybody) - ON_HOST
        yield {
            "name": contest.name,
            "moved": contest.moved,
            "copied": contest.copied,
            "ours": list(contest.ours),
            "expected": model.promised(contest.programs, contest.copied),
            "took": compare(everybody, contest.sets, captured),
        }
    synchronize()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def compiled(small: bool) -> Iterator[Unit]:
    """torch.compile of the plain loop that averages a model's gradients, beside `scale_` on a table."""
    shapes = even(4096, 3) if small else gpt2()

    def contest() -> Iterator[Contest]:
        size = 4 * sum(math.prod(shape) for shape in shapes)
        tensors = random_set(shapes, torch.float32)
        flat, other = (torch.empty(size // 4, device=DEVICE) for _ in range(2))
        table = Table.of(tensors)

        @torch.compile
        def loop(each: list[torch.Tensor]) -> None:
            for tensor in each:
                tensor.mul_(0.999)

        yield Contest(
            "average in place",
            2 * size,
            2 * size,
            {"table kept": lambda k: scale_(table, 1.0, 0.999)},
            {"copy": lambda k: other.copy_(flat), "torch.compile": lambda k: loop(tensors)},
            1,
            model.passes("scale", 4, shapes),
        )

    yield Unit(f"GPT-2 float32, {len(shapes)}: torch.compile", contest)
