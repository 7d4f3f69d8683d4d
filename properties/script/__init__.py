"""Write a counterexample as a script with plain torch and the implementation, without Lockstep.

whole         the script from the first line to the last
parts         the program, event by event; the lines of each event are in `properties.events`
head          the model, and other definitions at the head of the script
sharded       further definitions for an implementation that may shard tensors
layers        definitions for one that shards only plain layers
offered       definitions if a function makes the wrapper, whose methods are then known only at run time
writer        state and lines shared by the events
construction  constructing the model and its wrapper, initially and again
losses        losses that the caller computes itself
throughout    the caller's habits
optimizers    the caller's optimizer, or several
stepped       the same for a sharded optimizer
checkpoints   saving and loading
seen          the comparisons after an event
"""
