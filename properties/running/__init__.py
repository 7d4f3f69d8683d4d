"""The parts of a run of the laws, with or without pytest.

options             the command-line options
begin               the choices that follow from them, made before anything is collected
import_path         the folders from which modules are imported
where               the worlds of a run, and the reasons why this machine cannot have one
bench               the implementations and worlds of one process of pytest
once                results that one process of the run finds for all
selection           the tests to run
profiles            the number of examples
hold                checks a law on an implementation, from the first example to the verdict
apart               the same with known defects set aside
judging             turns a failure into a defect
telling             reports new defects and progress
probing             tries claims that the code neither makes nor declines
unbroken            the verdict of a law that no example broke
budget              spends the examples of a law, and reports progress
pace                gives all laws together a time instead of a number of examples
record              keeps passed examples, so that a stopped run can resume
summary             the verdicts at the end
page                the verdicts as an HTML page, with a picture of each defect
nothing_of_pytest   hides lines of pytest that repeat Lockstep's own
sources             the fingerprint of the code that a verdict depends on
session             all laws on one implementation, without a pytest run
target              the name by which ranks find a class or function
"""
