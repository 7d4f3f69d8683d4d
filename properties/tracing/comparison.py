"""Compare several implementations on the same training: the data they send, and how much of it computation hides."""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from lockstep.properties.implementations import Implementation
from lockstep.properties.tracing import clocked
from lockstep.properties.tracing.model import CostModel
from lockstep.properties.tracing.program import SIDE, language_model, training
from lockstep.properties.tracing.trace import trace
from lockstep.properties.trial import Trial
from lockstep.properties.verdict import LawBroken, Refused
from lockstep.worlds.contract import World, to_blame

COMPARED = (
    "lockstep.impls.naive:NaiveDataParallel",
    "lockstep.impls.naive:NaiveAccumulation",
    "lockstep.impls.hook:HookDataParallel",
    "lockstep.impls.async_hook:AsyncHookDataParallel",
    "lockstep.impls.hook_order_buckets:HookOrderBuckets",
    "lockstep.impls.static_buckets:StaticBuckets",
    "lockstep.impls.frameworks.torch_ddp:TorchDDP",
)
MICRO_BATCHES, SCALE, CAP = 2, SIDE**2, 25 * 2**20
STEPS_BY_THE_CLOCK = 5


@dataclass(frozen=True)
class Measured:
    """Shares of a step, and its milliseconds.

    ``compute``: computation divided by the step. ``overlap``: the part of communication that computation hides.
    """

    compute: float
    overlap: float
    step: float


@dataclass(frozen=True)
class Row:
    """One implementation.

    ``calls``, ``bytes``: of collectives, per rank and step. A measurement is None if the program did not finish, for
    the reason in ``why``, or if it was not requested.
    """

    name: str
    calls: int = 0
    bytes: int = 0
    on_sim: Measured | None = None
    by_the_clock: Measured | None = None
    why: str = ""


def compare(
    implementations: Sequence[Implementation], ranks: int, model: CostModel, sim: World, gloo: World | None
) -> Iterator[Row]:
    """A row for each implementation, as soon as it is known.

    ``gloo``: the world for measuring by the clock; None: do not.
    """
    for each in implementations:
        try:
            yield _row(each, ranks, model, sim, gloo)
        except (LawBroken, Refused) as ended:
            yield Row(each.short, why=first_words(ended))


def first_words(ended: LawBroken | Refused) -> str:
    """The verdict on a program and the first rank's error, in one line."""
    how = ended.verdict if isinstance(ended, LawBroken) else "refuses"
    errors = [f": rank {rank}: {error.message}" for rank, error in to_blame(ended.outcome).items()]
    return textwrap.shorten(how + "".join(errors[:1]), 200, placeholder=" ...")


def _row(of: Implementation, ranks: int, model: CostModel, sim: World, gloo: World | None) -> Row:
    shapes, cap = language_model(), CAP // SCALE
    traced = trace(Trial(of, sim), training(of.claims, shapes, ranks, MICRO_BATCHES, 2, cap), model, looks_inside=False)
    played = traced.played
    on_sim = Measured(float(played.compute_share), float(played.overlap), float(1000 * played.step))
    clock = None
    if gloo is not None:
        program = training(of.claims, shapes, ranks, MICRO_BATCHES, STEPS_BY_THE_CLOCK, cap)
        alone = training(of.claims, shapes, 1, MICRO_BATCHES, STEPS_BY_THE_CLOCK, cap)
        together = clocked.clocked(Trial(of, gloo), program)
        step = median(clocked.seconds_of_steps(program, together))
        computing = median(clocked.seconds_of_steps(alone, clocked.clocked(Trial(of, gloo), alone)))
        under_way = clocked.seconds_under_way(program, together)
        hidden = 1 - (step - computing) / under_way if under_way else 0.0
        clock = Measured(min(1.0, computing / step), min(1.0, max(0.0, hidden)), 1000 * step)
    calls = len(traced.calls[0])
    return Row(of.short, calls, traced.bytes, on_sim, clock)


def told(rows: Sequence[Row], ranks: int, model: CostModel) -> list[str]:
    """The rows in lines of at most 80 characters, and the origin of their figures.

    Worlds that were not measured have no columns.
    """
    worlds = ("sim, by a cost model", "gloo, by the clock")[: 1 + are_clocked(rows)]
    lines = [
        f"{'':20} {'calls':>6} {'KiB':>5} {' '.join(f'{name:^22}' for name in worlds)}".rstrip(),
        f"{'':20} {'/step':>6} {'/rank':>5}" + len(worlds) * f" {'compute':>7} {'overlap':>7} {'ms':>6}",
    ]
    for row in rows:
        if row.on_sim is None:
            lines += textwrap.wrap(f"{row.name:20.20} {row.why}", 80, subsequent_indent=" " * 21)
            continue
        measured = "".join(
            f" {100 * each.compute:5.0f} % {100 * each.overlap:5.1f} % {each.step:6.4g}"
            for each in (row.on_sim, row.by_the_clock)
            if each
        )
        lines.append(f"{row.name:20.20} {row.calls:6} {row.bytes / 1024:5.0f}{measured}")
    return [*lines, "", *textwrap.wrap(words(rows, ranks, model), 80)]


def are_clocked(rows: Sequence[Row]) -> bool:
    """True if any row has times by the clock."""
    return any(row.by_the_clock is not None for row in rows)


def words(rows: Sequence[Row], ranks: int, model: CostModel) -> str:
    """The origin of the figures, in sentences."""
    clock = " Gloo: medians by the clock of this host; computing is the step of one rank alone."
    told = (
        f"{ranks} ranks, {MICRO_BATCHES} micro-batches per step; the 290 tensors of SmolLM2-360M with matrices of a "
        f"{SIDE**2:,}th of their elements; buckets of 25 MiB / {SIDE**2:,}. Calls: collectives after construction. "
        "Compute: computing / step. Overlap: that part of communication which computing hides. "
        f"Sim: {model.words()}"
    )
    return told + clock * are_clocked(rows)
