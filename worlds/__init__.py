"""The worlds in which ranks run: one contract (`worlds.contract`), several worlds. None of them knows of training.

The worlds:

    contract       what goes in (a function's name, JSON) and what comes out, per rank
    sim            all ranks as threads of one process that pass a baton
    in_process     the same in the process that asks
    gloo           a pool on gloo, with CPU or CUDA tensors
    nccl           a pool on NCCL, one GPU per rank, or several ranks on each
    torchrun       a pool on the ranks of a torchrun job

What ranks ask of `torch.distributed`, in all of them:

    described_group  a process group that tells it in one vocabulary, for every torch release
    signatures     in every form in which torch lets one call them
    stand_in       every backend that a program asks for is the world's
    coalesced      one handle for several collectives
    devices        where a rank's tensors belong

Real processes:

    pool           one warm process per rank, seen from outside
    serving        what each of them does
    backend_group  its groups, whose collectives are recorded
    blame          whose fault a bad end was
    unmatched      what was launched without its other side

Any process:

    process        a supervised child: its clock, its log, its end
    progress       what it tells whatever becomes of it
    addresses      the same in every run
    process_tree   processes and what they have started
    fresh          what an example must not inherit from the one before it
    settings       what it would leave to the next: settings and functions of Python and torch
    preloaded      what fork servers import first: memory as usual for what they start, and no collection of garbage
"""

if __name__ != "lockstep.worlds":
    raise ImportError(f"{__file__} belongs to Lockstep and is imported as lockstep.worlds, not as {__name__}")
