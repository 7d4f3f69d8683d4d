"""P21: parameters that belong to some ranks, held to what the oracle says of experts on a mesh of ranks.

shape       whether a class takes a process group for each parameter, and what it offers
mixture     what is drawn: the mesh, the sizes of parameters, and experts without tokens
draws       the strategies
expected    the gradients, norm and weights of each step
rank        what every rank runs
run         starts it on a trial's world
"""
