"""P19: training loops, compared with the oracle on optimizer steps over windows of micro-batches.

shape       recognizes a training loop, and the arguments of its constructor
training    the draw: the tokens of each micro-batch, rank and window
draws       the strategies
expected    the expected loss, norm, learning rate and weights of each window, with bounds for rounding
rank        runs a training loop on every rank
run         starts it on a trial's world
"""
