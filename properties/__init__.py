"""The laws, and the one place where oracle, worlds and implementations meet.

The laws are test_*.py, one file per family. What a law is made of:

    law               what it says, draws and checks; its test
    claims            what an implementation promises, in a table
    claim             what the table says of each
    sharded           what it offers where it holds things in pieces
    implementations   which code, looked up by name
    trial             an implementation on a world: runs scenarios
    errors            what errors on ranks are: a refusal, or a verdict
    expected          what the oracle tells of a scenario
    verdict           how a trial can end
    difference        the first wrong value

What is known on both sides, by pytest and by the ranks:

    exercise          what is no program of events, such as a call or a sampler's epoch
    wrapper_call      a call of a wrapper of a collective: what ranks put in, and what must come out
    conditions        how a program is run, where that is not as usual
    part              of a program that stops, and goes on in another world
    companion         another model, trained beside one
    members           ranks that are a group in a larger world
    failure_place     where on a rank an error came, as the judge reads it
    seen              what a rank sees of a program, and sends back
    naming            how parameters, elements and events are called
    event_modules     finds what a package says of each event

The way of an example, package by package. None imports one that comes later, but programs of their own do:

    events            what each kind of event says of itself: drawing, claims, words, lines in a script
    strategies        draws it; ``python -m lockstep.properties.strategies`` prints how often each feature is
    ranks             run it
    judging           compares
    searching         draws more, and shrinks what fails
    defects           are what is wrong: their causes, set aside
    diagnosing        runs what has failed again, whole and in parts
    script            writes the failure as a script of its own
    models            are real ones under the laws
    reports           tell it to people
    results           tell it to machines, and hold it against what is known
    tracing           shows what ranks do in a step: ``lockstep run``
    running           does all of this in pytest
    exhausting        runs every small program, and draws none

More:

    kernels           P17, which has a bench of its own
    data              P20: samplers and loaders
    loops             P19: training loops
    experts           P21: parameters that belong to some ranks
    soundness         whether the world itself is right; ``lockstep world`` prints its order of addition
    catalogue         every law, fault and twin
    demo              ``lockstep demo`` finds a bug from scratch
    pages             the documentation that is made from the code: ``python -m lockstep.properties.pages``
    conformance       frameworks that have an adapter, held against the laws: ``lockstep conformance``
    gallery           ``python -m lockstep.properties.gallery`` searches for a counterexample to each law, for its page
    reported          ``python -m lockstep.properties.reported`` writes docs/published-defects.md
"""

if __name__ != "lockstep.properties":
    raise ImportError(f"{__file__} belongs to Lockstep and is imported as lockstep.properties, not as {__name__}")
