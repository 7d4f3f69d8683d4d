"""The code that runs on ranks, in the world's processes. It sends back plain data.

program      runs a scenario's program on an implementation
rank         one rank between events: what the caller does around them, and what is seen
events       how a rank carries out each event
wrapped      one rank's model in its wrapper
evaluating   the model evaluated, with other weights too, and copies of it
losses       what the caller makes losses of itself
randomness   seeds a rank's random numbers, and looks which come next
training     the caller's side: the optimizer, masters, the loss scale
optimizers   meets sharded optimizers, made of parameters and a class
stepping     what the caller does with one beside steps
probes       the probe models in torch
layers       plain layers that hold a probe's parameters
adapter      meets an implementation where it stands
names        of what a loop calls, in the order in which they are looked for
lookup       finds it by its name
cuda_stubs   calls of CUDA's that do nothing on CPUs
pieces       puts together what ranks hold in pieces
description  what can be told of it without running it
checkpoint   what is saved and loaded
launched     counts collectives launched before each gradient is final
held_bytes   counts bytes held
traced       notes when a rank does what
run_call     runs a call of a wrapper of a collective, for P14
plain_collectives  runs collectives that nothing wraps, for `properties.soundness`
"""
