"""Reports for people: of a failure, and of a whole run.

failure       in words, on a program
real_models   on a real model
otherwise     the conditions under which a law runs a program, in words
opening       the first lines of both
notes         hints on methods and claims that may be the reason
origin        the contributions in the first wrong value
labels        the contributions in the numbers that were sent
picture       the collectives, with sent and received numbers
facts         what a report says, as data
missing       the collectives that a run lacks
whereabouts   the line of the implementation at which a rank failed
overview      the end of a run against a user's code, on one screen
matrix        every law's verdict at the end
repeats       repetitions in a list, to be shown once
paragraphs    the layout of lines
"""
