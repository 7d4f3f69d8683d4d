"""`lockstep exhaust`: run every program of a core language up to a size, instead of some drawn ones.

language      the programs in the order of size, and their number
judged        runs and judges one program
portion       a hundred programs, in any process
running       all programs, in several processes, with a record
certificate   the result of a run without failures, as a file
"""
