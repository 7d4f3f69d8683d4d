"""Where ranks run. One contract (`worlds.contract`), several worlds; none of them knows what training is.

contract     what goes in (a function's name, JSON) and what comes out, per rank
collectives  what a rank asked of `torch.distributed`, in one vocabulary, for every torch release
stand_in     every backend that a program asks for is the world's
together     one handle for several collectives
process      a supervised child process: its clock, its log, its end
sim          all ranks as threads of one process that pass a baton
gloo         one warm process per rank
"""
