"""Compare the observations of a run with the oracle's expectation, for the laws.

judge        compares values
matching     checks that ranks call the same collectives
memory       compares the bytes that ranks hold
launches     checks when collectives are launched: inside `no_sync`, and during backward
traffic      counts the communicated elements
fair_share   the bytes that all ranks together should hold
slices       the exact bytes that each rank should hold
gathered     the full tensors held during forward and backward
wire         the dtypes in which gradients are communicated
"""
