"""Documentation pages made from the code.

    laws       docs/laws/: a page for each family of laws, with counterexamples, and a list of all laws
    claims     docs/claims.md: a table of all claims
    findings   docs/findings/: the defects found in other code, a page for each framework
    tour       docs/tour/: the pictures of docs/learn.md, drawn by a command of its own

``python -m lockstep.properties.pages`` writes them; a test checks that they are up to date. Counterexamples are kept as
they are: ``python -m lockstep.properties.gallery`` searches for them anew.
"""
