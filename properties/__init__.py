"""The laws, and the one place where oracle, worlds and implementations meet.

The laws are in test_*.py, one file per family. The parts of a law:

    law               the sentence of a law, its strategy and its check; makes a test of it
    claims            the table of claims, the promises of an implementation
    claim             the declaration of one claim
    sharded           the methods of an implementation that shards tensors
    implementations   looks up implementations by name
    trial             an implementation on a world: runs scenarios
    errors            turns errors on ranks into a refusal or a verdict
    expected          the oracle's expectation of a scenario
    verdict           the verdicts of a trial
    difference        the first wrong value

Shared by pytest and the ranks:

    exercise          a run that is no program of events, for example one call or a sampler's epoch
    wrapper_call      a call of a wrapper of a collective: inputs and expected results
    conditions        the unusual conditions under which a program runs
    part              a part of a program that stops, and continues in another world
    companion         another model, trained beside one
    members           ranks that are a group in a larger world
    failure_place     the place on a rank where an error occurred
    seen              the observations of a rank
    naming            names of parameters, elements and events
    event_modules     finds a package's module for each event

The path of an example, package by package. None imports a later one, except in programs of their own:

    events            the facets of each kind of event: drawing, claims, words, lines in a script
    strategies        draws programs; ``python -m lockstep.properties.strategies`` prints the frequency of features
    ranks             runs them on ranks
    judging           compares the results
    searching         draws more examples, and shrinks failures
    defects           the causes of failures, which are set aside
    diagnosing        runs a failure again, whole and in parts
    script            writes a failure as a script of its own
    models            real models under the laws
    reports           reports for people
    results           results as data, and known failures
    tracing           shows the acts of ranks in a step: ``lockstep run``
    running           does all of this in pytest
    exhausting        runs every small program instead of drawing some

Further modules:

    kernels           P17, the laws of kernels, with a test bench of its own
    data              P20: samplers and loaders
    loops             P19: training loops
    experts           P21: parameters that belong to some ranks
    soundness         checks the world itself; ``lockstep world`` prints its order of addition
    catalogue         every law, fault and twin
    demo              ``lockstep demo`` finds a bug from scratch
    pages             the documentation that is made from the code: ``python -m lockstep.properties.pages``
    conformance       checks the frameworks that have an adapter: ``lockstep conformance``
    gallery           ``python -m lockstep.properties.gallery`` searches for a counterexample to each law, for its page
    reported          ``python -m lockstep.properties.reported`` writes docs/published-defects.md
"""

if __name__ != "lockstep.properties":
    raise ImportError(f"{__file__} belongs to Lockstep and is imported as lockstep.properties, not as {__name__}")
