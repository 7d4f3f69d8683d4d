"""torch's profiler, of which there is one for each process: two ranks at a time would end it by SIGSEGV."""

from _thread import get_ident
from functools import cache
from typing import Any

from torch.autograd import profiler

from lockstep.worlds.contract import RankError
from lockstep.worlds.sim.meeting import current

_at_work: set[int] = set()  # the threads that are being profiled


@cache
def one_at_a_time() -> None:
    """Once for this process: a rank that profiles while another does is told that it cannot."""
    prepare, disable = profiler._prepare_profiler, profiler._disable_profiler

    def prepare_alone(*arguments: Any, **options: Any) -> Any:
        if _at_work - {get_ident()} and hasattr(current, "run"):
            words = f"rank {current.rank} starts torch's profiler while another rank profiles"
            reason = "all simulated ranks are one process, which has but one; a real backend has one for each rank"
            raise current.run.refuse(RankError("not runnable", f"{words}: {reason}"))
        _at_work.add(get_ident())
        return prepare(*arguments, **options)

    def disable_and_leave() -> Any:
        _at_work.discard(get_ident())
        return disable()

    profiler._prepare_profiler, profiler._disable_profiler = prepare_alone, disable_and_leave
