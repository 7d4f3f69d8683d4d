"""Experiments with a failure that was found, whose results reports tell.

rerunning    how often it comes again, and whether time or earlier examples are the reason
confirming   whether it stands, and what real processes make of it
diagnosis    all that follows, in one result
core         the least of its program that goes wrong by itself
shares       which contributions are in the first wrong value
guess        what would give just such values
rounding     whether it is that numbers travel in too narrow a dtype
claims       on which claims it hangs
starting     whether ranks are equal, only later than claimed
"""
