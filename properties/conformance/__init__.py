"""The conformance report: each framework that has an adapter, checked against every law that it claims.

rows      the adapters, the package that each needs, and the world that it runs on
holding   runs `lockstep check --json` for each row, and skips rows that have a result
page      the pages in docs/conformance/, made from the results
versions  the page that compares torch versions
"""
