"""The simulated world: all ranks are threads of one process, and exactly one of them runs at any time.

Who runs:

    world        the process they live in, seen from outside
    ranks        the threads, and one example after the other on them
    baton        who has it; a deadlock is seen the moment nobody can
    turn         what a rank sleeps on until it has it
    affinity     all threads on one core of the machine

What each rank would own as a process:

    belongings   kept apart
    possessions  global variables and class attributes, where a job asks for it
    generators   of random numbers
    isolation    its threads and groups
    store        where ranks find each other
    profilers    torch's, one at a time

What they say to each other:

    group        `torch.distributed`'s collectives, matched between ranks and delivered by us
    messages     sends and receives
    meeting      where ranks meet for one collective
    agreement    when members mean the same one
    meaning      what it computes, in the order that a job gives
    order, ring  that order as data; what a reduction to one root leaves on the others
    work         the handle of what was launched
    futures      what torch chains to it

What is seen of it:

    log          the timeline, and what a ring would move
    watch        under an `Asynchrony`: what a rank does with a flight and its region
    flight       a collective under way: when it reads and writes
    region       which memory a tensor is in
"""
