"""What must happen: a textbook in code. NumPy and ml_dtypes only; one function per rule; every result exact or proved.

programs       program (the one page on what events mean), fingerprint (their data), interpreter (their results)
arithmetic     formats, lattice (exact), rounding, intervals, bounds, power (what a bound can see)
collectives    collectives (their meaning), ring, tree, gloo (message by message), schedules (printed: python -m
               oracle.schedules), reduction_order (trees as data)
optimizers     optimizers (the textbook), optimizer_bits (torch's, bit for bit), optimizer_intervals
sharding       shards (who owns what), zero (what is held and sent when), zero_step (the same in numbers), recipes
cost           cost, overlap, batches, sampler
"""
