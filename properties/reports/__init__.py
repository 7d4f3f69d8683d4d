"""Reports for people, on a failure and on a whole run.

failure       the report of a failing program
real_models   the report of a failure on a real model
otherwise     unusual conditions of a run, in words
opening       the first lines of both
notes         hints at methods and claims that may be the cause
origin        the contributions in the first wrong value
labels        names of the numbers that were sent
picture       the collectives with sent and received numbers
facts         the statements of a report as data
missing       the collectives that a run lacks
whereabouts   the line of the implementation at which a rank failed
overview      the end of a run against a user's code, on one screen
matrix        the verdict of every law, at the end
repeats       repetitions in a list, which are shown once
paragraphs    the layout of lines
"""
