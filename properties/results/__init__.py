"""The results of a run for machines, and what is known of them.

run           what a run is told of known failures, and where it leaves its results
document      a run as data, with a schema that has a version: `--json`
known         failures that are known: `--known`, and `--write-known`
settled       which failures of a run are known, and which known ones are mended
diff          what is new, mended or changed between two documents: `lockstep diff`
advice        what to look at, by the cause of a defect
explained     a defect for someone who does not know its law: `check --explain`
annotations   marks at the lines of a pull request, where GitHub runs the laws
"""
