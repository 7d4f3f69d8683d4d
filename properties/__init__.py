"""The laws, and the one place where oracle, worlds and implementations meet.

What runs where:

    on the ranks      rank (runs a program), probes (the models), adapter (meets an implementation where it stands),
                      noted (where one failed, which the judge reads)
    in pytest         strategies (draw scenarios; ``python -m properties.strategies`` prints how often what is drawn),
                      trial (an implementation on a world), judge (compares), law, search (and shrink), hold (a law
                      against an implementation), report and what it is made of: decode, guess, picture, whereabouts,
                      paragraphs, script; matrix
    a run             options, bench (worlds and implementations), selection (which tests), profiles, budget (how many
                      examples, told and kept), record, probing (what is not claimed)
    by command        demo, gallery, soundness
    the laws          test_*.py, one file per family
    of kernels        kernels: what test_kernels.py draws, runs and expects
"""
