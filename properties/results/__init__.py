"""The results of a run as data, and the file of known failures.

run           the files that a run reads and writes: known failures, and results
document      a run as data, with a versioned schema: `--json`
known         the file of known failures: `--known` and `--write-known`
settled       the failures of a run that are known, and the known ones that are mended
diff          new, mended and changed defects between two documents: `lockstep diff`
advice        hints on the code to look at, by the cause of a defect
explained     a defect for someone who does not know its law: `check --explain`
annotations   marks at the lines of a pull request, if GitHub runs the laws
"""
