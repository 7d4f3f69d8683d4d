"""One training step, rank by rank: `lockstep run` shows it.

model        the cost model: what computing and a collective take
program      the program that is shown
trace        a run on the simulated world, played by the cost model
clocked      a run on real processes, by the clock
comparison   several implementations side by side
"""
