"""P19: training loops, held to what the oracle says of one optimizer step on a window of micro-batches.

shape       whether a class is a training loop, and which arguments its constructor takes
training    what is drawn: the tokens of each micro-batch, rank and window
draws       the strategies
expected    the loss, norm, learning rate and weights of each window, and the bounds of rounding
rank        what every rank runs
run         starts it on a trial's world
"""
