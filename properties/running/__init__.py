"""The parts of a run of the laws, in pytest or without it.

options       of the command line
begin         what they come to, before anything is collected
import_path   from where modules are imported
where         which worlds, and whether this machine has them
bench         implementations and worlds, for one process of pytest
once          what one process of the run finds out for all
selection     which tests
profiles      how many examples
hold          a law against an implementation, from the first example to the verdict
apart         the same apart from known defects
judging       makes a defect of a failure
telling       new defects, and how far a run is
probing       what is not claimed, tried and told
unbroken      how a law ends that nothing has broken
budget        spends the examples, and tells how far it is
pace          a time for all laws, in the place of a number of examples
record        keeps them, for a run that goes on
summary       the verdicts, at the end
page          the same as a page, with a picture of each defect
nothing_of_pytest   keeps lines of pytest off the terminal that say the same
sources       what makes what was kept stale
session       all laws against one implementation, without a run of pytest
target        a class or function, as a name by which ranks find it
"""
