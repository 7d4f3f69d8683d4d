"""Kernels on a GPU against what people use instead, and against a device-to-device copy as the limit.

`python -m lockstep.benchmarks.kernels [MIB ...]`. Everything that is compared takes turns in one run, on the same
tensors, and a figure is the median over rounds of what a call takes, the host's part included: calls are queued one
after another, and the clock stops when the device has done them all. Several sets of tensors take turns, so that none
stays in cache.

"of copy" is the share of the copy's bandwidth, counting bytes that must be read and written; behind it stands how many
times as long the others take. Table kept: made once, for tensors that stay; rebuilt: at every call; rebound: addresses
only.
"""

import argparse
import datetime
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from lockstep.benchmarks.shapes import even, gpt2, llama
from lockstep.impls.kernels.norm import norm
from lockstep.impls.kernels.pack import pack, unpack
from lockstep.impls.kernels.scale import average_and_clip_, scale_
from lockstep.impls.kernels.step import adamw_step, sgd_step
from lockstep.impls.kernels.table import Table

MIB = 2**20
SIZES = (1, 4, 16, 64, 256, 1024, 4096)
ROUNDS = 7
TURN = 3e-3  # seconds that a contestant's turn should take, of at most MOST_CALLS calls
MOST_CALLS = 50
SPREAD = 512 * MIB  # bytes over which a call's sets of tensors spread, far more than any cache holds
DIVISOR = 1 + 2**-10  # so little that after a thousand calls there is something left to divide
MAX_NORM = 1.0

Call = Callable[[int], object]  # runs on the set of tensors of that number


@dataclass(frozen=True)
class Contest:
    """One task: the bytes that must be ``moved``; calls by name, ours, and those of peers, the copy among them.

    ``sets``: how many sets of tensors there are.
    """

    name: str
    moved: int
    ours: dict[str, Call]
    peers: dict[str, Call]
    sets: int


@triton.jit
def _copy_one(source, target, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """The usual tutorial's kernel, for one tensor."""
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + offsets, tl.load(source + offsets, offsets < count), offsets < count)


def random_set(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors of their own memory each, as a backward leaves them."""
    return [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]


def movers(shapes: Sequence[tuple[int, ...]], dtype: torch.dtype) -> Iterator[Contest]:
    """Pack and unpack without arithmetic."""
    elements = sum(math.prod(shape) for shape in shapes)
    size = elements * dtype.itemsize
    sets = max(1, min(8, SPREAD // (2 * size)))
    lists = [random_set(shapes, dtype) for _ in range(sets)]
    buckets = [torch.empty(elements, device="cuda", dtype=dtype) for _ in range(sets)]
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
    yield Contest(
        "pack",
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
        },
        sets,
    )
    yield Contest(
        "unpack",
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
    flat = [torch.empty(elements, device="cuda", dtype=dtype) for _ in range(sets)]
    copy: dict[str, Call] = {"copy": lambda k: flat[k].copy_(flat[(k + 1) % sets]) if sets > 1 else flat[k].clone()}
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    narrow = [torch.empty(elements, device="cuda", dtype=other) for _ in range(sets)]

    def div_and_clip(k: int) -> None:
        torch._foreach_div_(lists[k], DIVISOR)
        torch.nn.utils.clip_grad_norm_(parameters[k], MAX_NORM, foreach=True)

    yield Contest(
        "average in place",
        2 * size,
        {"table kept": lambda k: scale_(tables[k], 1.0, 0.999)},
        {**copy, "foreach mul": lambda k: torch._foreach_mul_(lists[k], 0.999)},
        sets,
    )
    yield Contest(
        "norm",
        size,
        {"table kept": lambda k: norm(tables[k]), "rebuilt": lambda k: norm(lists[k])},
        {
            **copy,
            "foreach norm": lambda k: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(lists[k]))),
        },
        sets,
    )
    yield Contest(
        "average and clip",
        3 * size,
        {"table kept": lambda k: average_and_clip_(tables[k], 1.0, MAX_NORM)},
        {**copy, "clip_grad_norm_": lambda k: torch.nn.utils.clip_grad_norm_(parameters[k], MAX_NORM, foreach=True)},
        sets,
    )
    yield Contest(
        "average by ranks and clip",
        3 * size,
        {"table kept": lambda k: average_and_clip_(tables[k], DIVISOR, MAX_NORM)},
        {**copy, "div, clip_grad_norm_": div_and_clip},
        sets,
    )
    yield Contest(
        f"cast to {str(other).removeprefix('torch.')} and pack",
        size + elements * other.itemsize,
        {"table kept": lambda k: pack(tables[k], narrow[k])},
        {
            **copy,
            "cat, to": lambda k: narrow[k].copy_(torch.cat([tensor.view(-1) for tensor in lists[k]])),
        },
        sets,
    )


def steps(elements: int) -> Iterator[Contest]:
    """ZeRO's shard step on one flat shard."""
    size = elements * 4
    sets = max(1, min(4, SPREAD // size))
    shards = []
    for _ in range(sets):
        param = torch.randn(elements, device="cuda", dtype=torch.bfloat16)
        master, grad = param.float(), torch.randn(elements, device="cuda", dtype=torch.bfloat16)
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
        {"one pass": lambda k: adamw_step(*shards[k], step=10, lr=1e-3, weight_decay=0.01)},
        {**copy, "cast, fused AdamW, cast": torch_step},
        sets,
    )
    yield Contest(
        "SGD with momentum",
        elements * (2 + 2 + 2 * 8),
        {"one pass": lambda k: sgd_step(*shards[k][:4], lr=1e-3, momentum=0.9)},
        copy,
        sets,
    )


def seconds(call: Call, sets: int, first: int, calls: int) -> float:
    """What a call takes, ``calls`` of them being queued one after another."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for number in range(first, first + calls):
        call(number % sets)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def compare(contest: Contest) -> dict[str, float]:
    """The median seconds of each, all taking turns."""
    everybody = {**contest.ours, **contest.peers}
    calls = {}
    for name, call in everybody.items():
        call(0)  # compiles
        calls[name] = max(1, min(MOST_CALLS, int(TURN / seconds(call, contest.sets, 0, 1))))
    rounds: dict[str, list[float]] = {name: [] for name in everybody}
    for number in range(ROUNDS):
        for name, call in everybody.items():
            rounds[name].append(seconds(call, contest.sets, number, calls[name]))
    return {name: statistics.median(values) for name, values in rounds.items()}


def line(contest: Contest, label: str, copied: int) -> str:
    """One line of the table. ``copied``: bytes that the copy moves."""
    took = compare(contest)
    limit = copied / took["copy"]
    best = min(contest.ours, key=lambda name: took[name])
    text = f"{label:24}{contest.name:30}{1e6 * took[best]:10.1f} us{contest.moved / took[best] / 1e9:8.0f} GB/s"
    text += f"{100 * contest.moved / took[best] / limit:7.1f} % of copy"
    rest = [f"{name} {took[name] / took[best]:.2f}" for name in took if name not in (best, "copy")]
    return text + (f"   {', '.join(rest)}" if rest else "")


def lines(sizes: Sequence[int] = SIZES) -> Iterator[str]:
    """The tables: sizes in MiB with one tensor and a thousand, real models, and optimizer steps."""
    yield "time of the fastest of ours; how many times as long the others take"
    for dtype, shapes, label in contests(sizes):
        elements = sum(math.prod(shape) for shape in shapes)
        size = elements * dtype.itemsize
        for make in (movers, arithmetic):
            if make is arithmetic and size > 2048 * MIB:
                continue  # several copies of all would not fit beside each other
            for contest in make(shapes, dtype):
                yield line(contest, label, 2 * size)
            torch.cuda.empty_cache()
    for size in sizes:
        elements = size * MIB // 4
        if size <= 1024:
            for contest in steps(elements):
                yield line(contest, f"{size} MiB of masters", 8 * elements)
            torch.cuda.empty_cache()


def contests(sizes: Sequence[int]) -> Iterator[tuple[torch.dtype, list[tuple[int, ...]], str]]:
    """Dtype, shapes and label of each list of tensors."""
    for size in sizes:
        for tensors in (1, 1000):
            yield torch.float32, even(size * MIB // 4, tensors), f"{size} MiB, {tensors}"
    yield torch.bfloat16, even(256 * MIB // 2, 1), "256 MiB bfloat16, 1"
    yield torch.bfloat16, even(256 * MIB // 2, 1000), "256 MiB bfloat16, 1000"
    yield torch.float32, gpt2(), f"GPT-2, {len(gpt2())}"
    yield torch.bfloat16, llama(), f"Llama 1B bf16, {len(llama())}"


def main() -> None:
    """Prints the tables, after the date, the GPU and the versions."""
    parser = argparse.ArgumentParser(prog="python -m lockstep.benchmarks.kernels", description=main.__doc__)
    parser.add_argument("sizes", nargs="*", type=int, metavar="MIB", help=f"of the lists (default: {SIZES})")
    sizes = parser.parse_args().sizes or SIZES
    if not torch.cuda.is_available():
        raise SystemExit(f"lockstep.benchmarks.kernels needs a CUDA GPU, and torch {torch.__version__} sees none here")
    today = datetime.date.today().isoformat()
    print(f"{today}: {torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}\n")
    for each in lines(sizes):
        print(each, flush=True)


if __name__ == "__main__":
    main()
