"""Defects of an implementation. Each is found, set aside, and reported once.

needs      the features of a program that the plainest program lacks, as a set of names
cause      the needs of a minimal failing program; it tells which other programs contain them
defect     a cause and its effects, as plain data
aside      leaves out the programs that contain a cause
by_itself  the law that a program breaks by its values, whatever law it was drawn for
ledger     the defects of a run, shared by all of its processes
"""
