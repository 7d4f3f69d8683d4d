"""The laws, and the one place where oracle, worlds and implementations meet.

Where ranks run (the world's processes; what comes back is plain data):

    rank              runs a scenario's program on an implementation, and looks from outside
    wrapped           one rank's model in its wrapper
    training          the caller's side: the optimizer, masters, the loss scale
    probes            the probe models in torch
    adapter           meets an implementation where it stands
    checkpoint        what is saved and loaded
    launched          counts collectives launched before each gradient is final
    held_bytes        counts bytes held
    wrapper_rank      runs a call of a wrapper of a collective, for P14
    collective_rank   runs plain collectives, for `soundness`

On both sides:

    claims            what an implementation promises
    calls             a call of a wrapper of a collective: drawn, made, judged
    part              of a program that stops, and goes on in another world
    members           ranks that are a group in a larger world
    noted             where on a rank an error came, as the judge reads it
    naming            how parameters, elements and events are called

In pytest, what draws:

    strategies        scenarios; ``python -m properties.strategies`` prints how often what is drawn
    timing            when collectives read and write, on sim
    independent       examples that do not hang on one another

What runs and judges:

    law               what a law is; its test; test_*.py are the laws, one file per family
    trial             an implementation on a world: runs scenarios
    verdict           how that can end
    expected          what the oracle tells of a scenario
    judge             compares values
    judge_cost        compares what a run cost
    traffic           what was sent, as `oracle.cost` counts it
    fair_share        what all ranks together should hold
    slices            what each rank holds to the byte
    gathered          what is whole while forward and backward run
    wire              in which dtypes gradients travel
    soundness         whether the world itself is right; ``python -m properties.soundness`` prints its order of addition

What searches:

    hold              a law against an implementation, from the first example to the verdict
    search            draws, and shrinks what fails
    core              the least of a failing program that goes wrong by itself
    remembered        what failed before is tried again first
    probing           what is not claimed, tried and told

What reports:

    report            a failure, in words
    difference        the first wrong value
    decode, labels    which contributions are in it, and in what was sent
    guess             what may have gone wrong
    picture           what went over the wire
    whereabouts       where in the implementation's code it failed
    script            the failure as a script of its own
    causes            failures of one cause, told once
    paragraphs        how lines are filled
    matrix            every law's verdict at the end

What makes up a run:

    options           of the command line
    where             which worlds, and whether this machine has them
    implementations   which code, looked up by name
    bench             the two, for one process of pytest
    selection         which tests
    profiles          how many examples
    budget            spends them, and tells how far it is
    record            keeps them, for a run that goes on
    sources           what makes what was kept stale
    catalogue         every law, fault and twin

More:

    models            real models under the laws
    kernels           P17, which has a bench of its own
    demo              ``python -m properties.demo`` finds a bug from scratch
    gallery           ``python -m properties.gallery`` writes GALLERY.md
"""
