"""The oracle: a textbook in code of what must happen. It needs only NumPy and ml_dtypes. Each rule is one function.

It says more than the laws ask, and holds all of it against papers, published figures, torch and gloo. No law rests on
what a bound can see (`power`), ZeRO's steps in numbers (`zero_step`), torch's optimizers bit for bit
(`optimizer_bits`), which samples a rank sees (`batches`, `sampler`), and on some of the arithmetic and collectives.

Programs:

    program              a scenario: its set-up, and a program of events
    setup                what is chosen once: ranks, model, options
    events               each event: what it means, where it may come, what it does
    event                what they have in common
    standing             what holds between two events, as the program alone says it
    caller               what its caller does throughout
    well_formed          which programs a training loop could have
    model                parameters, buffers, groups and their hyper-parameters
    hyperparameters      of each group
    short                plain data with a repr that evaluates back
    initial              what ranks begin with
    fingerprint          the data of a scenario
    forwards             which of several forwards has which data
    interpreter          what every rank must hold
    expectation          that, event by event
    state, stepping      what the interpreter knows between two events, and how it steps
    means                of gradients, over ranks
    joining              ranks that run out of micro-batches
    clipping             by the global norm
    loss_scaling         with a scale that follows the overflows
    mixed_precision      masters

Arithmetic:

    formats, rounding    floating point, and rounding into it, once
    lattice              exact numbers, with the proof that nothing rounds
    intervals            numbers whose range is proved
    enclosures           sums and means of those, in any order
    bounds               proved bounds for sums, dot products and norms
    power                what a bound can see

Collectives:

    collectives          their meaning
    ring, tree, gloo     message by message
    hierarchical         the same on nodes of several ranks
    schedules            all of these, printed: ``lockstep schedule``
    reduction_order      the order of summation as data

Optimizers:

    optimizers           the textbook
    optimizer_bits       torch's, bit for bit
    optimizer_intervals  what a conforming one may give

Buckets and shards:

    buckets              which tensors are end to end
    shards               who owns what
    zero                 what is held and sent when
    zero_step            the same in numbers
    recipes              bytes per parameter by precision

Cost:

    cost                 bytes held, elements moved, time
    estimate             all of it of one training step; ``lockstep cost`` prints it
    language_models      tensors of known models, and their activations
    overlap              what backward hides of it
    played               the same of any program of computing, launching and waiting
    batches, sampler     samples per step, and which of them a rank sees
    window               the mean of a window of micro-batches on all ranks, by a policy
    dealing              what samples dealt to ranks must keep, in whatever order

Refused everywhere alike:

    checks               counts and stages that cannot be
"""

if __name__ != "lockstep.oracle":
    raise ImportError(f"{__file__} belongs to Lockstep and is imported as lockstep.oracle, not as {__name__}")
