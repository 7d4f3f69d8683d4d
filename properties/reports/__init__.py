"""Tells a failure to people.

failure       in words, on a program
real_models   on a real model
otherwise     how a law runs a program otherwise than as usual
opening       how either begins
notes         what its reader may have missed
origin        which contributions are in the first wrong value
labels        and in what was sent
picture       what went over the wire
whereabouts   where in the implementation's code it failed
overview      a run against a user's code at its end, on one screen
matrix        every law's verdict at the end
repeats       what comes over and over, told once
paragraphs    how lines are filled
"""
