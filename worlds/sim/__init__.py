"""The simulated world: all ranks are threads of one process, and exactly one of them runs at any time.

baton       who runs; a deadlock is seen the moment nobody can
belongings  what each rank would own as a process, with generators; isolation: its threads and groups
group       `torch.distributed`'s collectives, matched between ranks and delivered by us
agreement   when members mean the same collective
meaning     what each computes, in the order that a job gives
messages    sends and receives
work        the handle of a collective that was launched
watch       under an `Asynchrony`: what a rank does with a flight, a collective under way, and its region of memory
log         the timeline, and what a ring would move
ranks       the threads, and one example after the other on them
world       the process they live in, seen from outside
"""
