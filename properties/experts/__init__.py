"""P21: parameters that only some ranks have, compared with the oracle on experts on a mesh of ranks.

shape       recognizes a class that takes a process group for each parameter, and its methods
mixture     the draw: the mesh, the sizes of parameters, and experts without tokens
draws       the strategies
expected    the expected gradients, norm and weights of each step
rank        trains such a model on every rank
run         starts it on a trial's world, and compares
"""
