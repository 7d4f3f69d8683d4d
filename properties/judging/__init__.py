"""Compares what was seen with what the oracle tells, for the laws.

judge        values
matching     the same collectives on every rank
memory       the bytes that ranks hold
launches     when collectives are launched: inside `no_sync`, and beside backward
traffic      what was sent, in elements
fair_share   what all ranks together should hold
slices       what each rank holds to the byte
gathered     what is whole while forward and backward run
wire         in which dtypes gradients travel
"""
