"""Figures against peers: `python -m lockstep.benchmarks` prints them as ratios, all taken in one run on one machine.

contestants  the worlds that are compared, each running the same example
worlds       what an example costs on each of them
separation   defects told apart: faults that ship, several in one class
shares       where the time of a law's examples goes
first_seen   programs until a fault is first seen, with runs judged by one law or by all
shared_runs  the time of a check that finds nothing, likewise
published_shapes  every law on the right class of each published shape
start        how long a user waits before anything happens
exhausted_faults  which of the faults that ship every small program finds
gpu          everything that needs a GPU, in parts that fit into minutes: `python -m lockstep.benchmarks.gpu`
units        what such a part consists of
kernels      the tasks that kernels are measured on, with what people use instead
shapes       of the tensors that they are measured on
peers        kernels of other packages
timing       what a call takes, replayed from a CUDA graph or called
model        the bandwidth that kernels should reach, from bytes and programs
tuning       what other programs of a kernel would reach
results      what was measured, as JSON and as a table
roofline     a plot of it
laws         the laws on a GPU, of kernels and on worlds
on_device    what only a GPU can show of kernels
"""

if __name__ != "lockstep.benchmarks":
    raise ImportError(f"{__file__} belongs to Lockstep and is imported as lockstep.benchmarks, not as {__name__}")
