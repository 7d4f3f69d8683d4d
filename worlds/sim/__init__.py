"""The simulated world: all ranks are threads of one process, and exactly one of them runs at any time.

baton       who runs; a deadlock is seen the moment nobody can
belongings  what each rank would own as a process
group       `torch.distributed`'s collectives, matched between ranks and delivered by us
agreement   when members mean the same collective
meaning     what each collective computes
messages    sends and receives
ranks       the threads, and one example after the other on them
world       the process they live in, seen from outside
"""
