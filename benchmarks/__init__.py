"""Figures against peers: `python -m lockstep.benchmarks` prints them as ratios, all taken in one run on one machine.

contestants  the worlds that are compared, each running the same example
worlds       what an example costs on each of them
shares       where the time of a law's examples goes
start        how long a user waits before anything happens
kernels      kernels on a GPU against what people use instead: `python -m lockstep.benchmarks.kernels`
shapes       of the tensors that they are measured on
gpu          everything that needs a GPU, in one call
"""

if __name__ != "lockstep.benchmarks":
    raise ImportError(f"{__file__} belongs to Lockstep and is imported as lockstep.benchmarks, not as {__name__}")
