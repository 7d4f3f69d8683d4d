"""Experiments with a failure. Reports print their results.

rerunning    counts how often it recurs, and checks if time or earlier examples cause it
confirming   decides if it counts, and runs it on real processes
diagnosis    runs all further experiments and collects their results
core         the smallest part of its program that fails without the law
shares       the coefficient of each contribution in the first wrong value
guess        a known cause that explains the wrong values
rounding     checks if gradients are sent in too narrow a dtype
claims       the claims without which it does not occur
starting     checks if ranks are equal, but later than claimed
"""
