"""Writes a counterexample as a script of its own: plain torch and the implementation, nothing of Lockstep.

whole         the script, from the first line to the last
parts         the program, event by event; the lines of each event are in `properties.events`
head          the model and whatever else the script defines before it begins
sharded       what it defines beside for an implementation that may hold things in pieces
layers        for one that shards plain layers alone
offered       and where a function makes the wrapper, whose methods are known only then
writer        what several events need to say
construction  the model and what wraps it, made at first and anew
losses        what the caller makes losses of itself
throughout    what it does throughout
optimizers    the caller's optimizer, or optimizers
stepped       the same, where it is a sharded optimizer
checkpoints   what is saved and loaded
seen          what must be seen after an event
"""
