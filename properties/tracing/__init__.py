"""One training step, rank by rank, for `lockstep run`.

model        the cost model: the times of computation and of collectives
program      the program that is shown
trace        a run on the simulated world, timed by the cost model
clocked      a run on real processes, timed by the clock
comparison   several implementations side by side
"""
