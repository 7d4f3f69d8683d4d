"""A picture to draw: two ranks, of which one is late, and a collective in which different parameters meet."""

from lockstep.pictures.lanes import Doing, Lane, Lanes, Transfer

FAST = (Doing("forward", "a, b", 0.0, 2.0), Doing("backward", "b", 2.0, 4.0), Doing("wait", "1", 4.0, 9.0))
SLOW = (Doing("forward", "a, b", 0.0, 4.0), Doing("backward", "a", 4.0, 6.0), Doing("optimizer", "", 9.0, 10.0))
LANES = Lanes(
    "Wrong<DDP>: 2 ranks",
    "Times are made up.",
    (Lane(0, FAST, ((2.0, 512), (4.0, 2048))), Lane(1, SLOW)),
    (Transfer(1, "all_reduce", 2048, {0: 4.0, 1: 6.0}, 6.0, 9.0, {0: "b", 1: "a"}, clash=True),),
    {"step": "10 ms"},
)
