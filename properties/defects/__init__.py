"""Defects: the things that are wrong with an implementation, one by one: found, set aside, told once.

needs      what a program has that the plainest has not, as a set of names
cause      what a minimal failing program needs, and whether another program contains it
defect     a cause with what it does, its faces, as plain data
aside      leaves out the programs that contain it
by_itself  which law a program breaks that goes wrong by itself
ledger     the defects of a run, known to all of its processes
"""
