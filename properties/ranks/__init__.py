"""Code that runs on ranks, in the processes of a world. It returns plain data.

program      runs a scenario's program on an implementation
rank         one rank between events: the caller's actions, and what is observed
events       carries out each event on a rank
wrapped      one rank's model in its wrapper
evaluating   evaluations of the model, of other weights, and of copies
losses       losses that the caller computes itself
randomness   seeds a rank's random numbers, and reads the upcoming ones
training     the caller's side: the optimizer, master weights, the loss scale
optimizers   adapts sharded optimizers, made from parameters and a class
stepping     uses of a sharded optimizer beside plain steps
probes       the probe models in torch
layers       plain layers that hold a probe's parameters
adapter      constructs an implementation and calls its methods
names        the names under which methods are looked for
lookup       finds an implementation by its name
cuda_stubs   CUDA calls that do nothing on CPUs
pieces       assembles parameters of which each rank holds a piece
description  a description of an implementation without running it
checkpoint   saved and loaded state
launched     counts the collectives launched before each gradient is final
held_bytes   counts the bytes that a rank holds
traced       records when a rank does what
run_call     runs a call of a wrapper of a collective, for P14
plain_collectives  runs bare collectives, for `properties.soundness`
"""
