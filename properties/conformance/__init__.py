"""The conformance report: each framework that has an adapter, held against every law that it claims.

rows     which adapters there are, the package that each needs, and the world that it runs on
holding  `lockstep check --json` for each row, one after the other; what is there already is not run again
page     the pages in docs/conformance/, made from these files
"""
