"""Pictures: what ranks do, what a law finds, and what training costs, drawn. They are given plain data.

Diagrams and pages are Jinja2 templates, self-contained and escaped; plots are matplotlib's, an extra. It knows nothing
of torch, worlds or laws.

    lanes         what ranks did, as data: a lane per rank, collectives between them
    happenings    what happens on ranks, in order and in words
    in_text       lanes for a terminal
    in_svg        lanes as a diagram
    messages      the messages of a collective as a diagram
    perfetto      lanes as a trace for Chrome's and Perfetto's viewer
    pages         templates, filled in: self-contained pages, and diagrams alone
    verdicts      the page of a run of the laws
    plots         curves and bars
"""
