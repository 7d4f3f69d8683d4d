"""Where ranks run. One contract (`worlds.contract`), several worlds; none of them knows what training is.

contract     what goes in (a function's name, JSON) and what comes out, per rank
collectives  what a rank asked of `torch.distributed`, in one vocabulary, for every torch release
stand_in     every backend that a program asks for is the world's
together     one handle for several collectives
process      a supervised child process: its clock, its log, its end
family       processes and what they have started
sim          all ranks as threads of one process that pass a baton; in_process: in the one that asks
pool         one warm process per rank, seen from outside; serving: what each of them does, in groups of
             backend_group; blame: whose fault it was
gloo         a pool on gloo, with CPU or CUDA tensors
nccl         a pool on NCCL, one GPU per rank (not run on a GPU yet)
torchrun     a pool on the ranks of a torchrun job
devices      where a rank's tensors belong
"""
