"""The simulated world: all ranks are threads of one process, and exactly one of them runs at any time.

Execution:

    world        the process of all ranks, seen from outside
    ranks        the threads, and one example after the other on them
    baton        passed by the running rank; a deadlock is seen the moment no rank can run
    turn         the lock on which a rank sleeps until it has its turn
    affinity     all threads on one core of the machine

State that each rank would own as a process:

    belongings   random numbers and environment, kept apart
    possessions  global variables and class attributes, if a job asks for it
    generators   of random numbers
    isolation    its threads and groups
    store        where ranks find each other
    profilers    torch's, one at a time

Communication:

    group        `torch.distributed`'s collectives, matched between ranks and delivered here
    messages     sends and receives
    meeting      where ranks meet for one collective
    agreement    the rules by which members mean the same collective
    meaning      the result, in the order that a job gives
    order, ring  that order as data; the values that a reduction to one root leaves on the others
    work         the handle of a launched collective
    futures      the futures that torch chains to it

Observation:

    log          the timeline, and the bytes that a ring would move
    watch        under an `Asynchrony`: each operation on the memory of a flight
    flight       a collective in flight: when it reads and writes
    region       the memory of a tensor
"""
