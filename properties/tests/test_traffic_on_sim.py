"""What the simulated world says that a ring would move is what the oracle's rings send, message by message."""

import pytest

from lockstep.oracle.ring import Message, all_gather_schedule, chunk_sizes, reduce_scatter_schedule
from lockstep.worlds.contract import World
from lockstep.worlds.tests.outcomes import call, run_calls


def messages(do: str, elements: int, size: int) -> list[Message]:
    """All messages of a ring; ``elements`` are those that each rank puts in."""
    sizes = chunk_sizes(elements, size)
    match do:
        case "all_reduce":
            return reduce_scatter_schedule(sizes) + all_gather_schedule(sizes)
        case "reduce_scatter_tensor":
            return reduce_scatter_schedule(sizes, shift=1)
        case _:
            return all_gather_schedule([elements] * size, shift=1)


@pytest.mark.parametrize("do", ["all_reduce", "reduce_scatter_tensor", "all_gather"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_a_ring_moves_what_the_oracles_ring_moves(sim: World, size: int, do: str) -> None:
    for elements in (size, 4 * size, *((1, 13) if do != "reduce_scatter_tensor" else ())):
        outcome = run_calls(sim, [[call(do, count=elements, dtype="float32")]] * size, timeline=True)
        for rank, report in enumerate(outcome):
            (passage,) = report.timeline
            sent = [message for message in messages(do, elements, size) if message.sender == rank]
            assert (passage.sent, passage.messages) == (4 * sum(each.elements for each in sent), len(sent))


def test_a_chain_moves_the_whole_once_over_all_links_but_one(sim: World) -> None:
    for do, root in (("broadcast", 2), ("reduce", 1)):
        outcome = run_calls(sim, [[call(do, root=root)]] * 4, timeline=True)
        moved = [(report.timeline[0].sent, report.timeline[0].messages) for report in outcome]
        end = (root - 1) % 4 if do == "broadcast" else root
        assert moved == [(0, 0) if rank == end else (64, 1) for rank in range(4)]
