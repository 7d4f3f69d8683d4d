"""Compare the bytes that ranks hold with the expected ones."""

from collections.abc import Mapping, Sequence

from lockstep.properties.judging.gathered import Moment
from lockstep.properties.naming import parameter_name
from lockstep.properties.trial import Run
from lockstep.properties.verdict import LawBroken, SilentlyWrong, Wasteful

WEIGHING = "lockstep.properties.ranks.held_bytes:weigh_program"
# The world on which bytes can be counted, and the reason why others cannot.
WEIGHED = {
    "sim": "bytes are counted on the simulated world alone, as a real backend's own threads hold tensors for some time "
    "after a wait. The script runs this program, and counts none."
}


def bytes_held(run: Run, shares: Mapping[int, tuple[int, int]], headline: str) -> None:
    """Check that after each of these events all ranks together hold between the least and the most bytes."""
    for place, (least, most) in shares.items():
        each = [seen["bytes"][place] for seen in run.observations]
        if not least <= sum(each) <= most:
            wanted = f"{least}" if least == most else f"between {least} and {most}"
            words = f"{headline} {_after(place)} ranks hold {' + '.join(map(str, each))} = {sum(each)} bytes"
            raise run.broken(_held(sum(each) > most), f"{words} where it must be {wanted}.")


def _held(more: bool) -> type[LawBroken]:
    """The verdict. Too few bytes are wrong, not wasteful: data is hidden, kept in fewer bits, or missing."""
    return Wasteful if more else SilentlyWrong


def _after(place: int) -> str:
    return "After construction" if place < 0 else f"After event {place}"


def slices_held(run: Run, shares: Mapping[int, tuple[int, ...]], headline: str) -> None:
    """Check that each rank holds exactly so many bytes after each of these events."""
    for place, wanted in shares.items():
        each = [seen["bytes"][place] for seen in run.observations]
        wrong = [rank for rank, right in enumerate(wanted) if each[rank] != right]
        if wrong:  # if some ranks hold more and others less, report one that holds more
            rank = max(wrong, key=lambda rank: each[rank] > wanted[rank])
            seen, right = each[rank], wanted[rank]
            words = f"{headline} {_after(place)} rank {rank} holds {seen} bytes where it must be {right}."
            raise run.broken(_held(seen > right), words)


def whole_at_a_time(run: Run, rank: int, place: int, wanted: Sequence[Moment], headline: str) -> None:
    """Check the bytes that a rank holds at each moment of a Backward."""
    for (kind, which, held, gradients), right in zip(run.observations[rank]["moments"][place], wanted, strict=True):
        when = f"when {parameter_name(which)}.grad becomes final"
        if kind == "forward":
            when = f"when {'the forward' if which < 0 else f'forward of unit{which}'} begins"
        rest = "beside whole gradients and what autograd keeps"
        for seen, must, what in ((gradients, right.gradients, "of whole gradients"), (held, right.held, rest)):
            if must is not None and seen != must:
                words = f"{headline} In event {place}, {when}, rank {rank} holds {seen} bytes {what}"
                raise run.broken(_held(seen > must), f"{words} where it must be {must}.")
