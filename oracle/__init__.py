"""The oracle: a textbook in code of what must happen. It needs only NumPy and ml_dtypes. Each rule is one function.

The oracle says more than the laws ask. All of it is tested against papers, published figures, torch and gloo. No law
uses the power of a bound (`power`), ZeRO's steps in numbers (`zero_step`), torch's optimizers bit for bit
(`optimizer_bits`), the samples that a rank sees (`batches`, `sampler`), and parts of the arithmetic and collectives.

Programs:

    program              a scenario: its set-up, and a program of events
    setup                what is chosen once: ranks, model, options
    events               each event: what it means, where it may come, what it does
    event                the base class of all events
    standing             the facts between two events that follow from the program alone
    caller               what the caller does throughout a program
    well_formed          which programs a training loop could have
    model                parameters, buffers, groups and their hyper-parameters
    hyperparameters      of each group
    short                plain data with a repr that evaluates back
    initial              the values with which ranks begin
    fingerprint          the data of a scenario
    forwards             which of several forwards has which data
    interpreter          what every rank must hold
    expectation          that, event by event
    state, stepping      what the interpreter knows between two events, and how it steps
    means, averaging     of gradients, over ranks, in any of several ways
    joining              ranks that run out of micro-batches
    clipping             by the global norm
    loss_scaling         with a scale that follows the overflows
    mixed_precision      master weights

Arithmetic:

    formats, rounding    floating point, and rounding into it, once
    lattice              exact numbers, with the proof that nothing rounds
    intervals            numbers whose range is proved
    enclosures           sums and means of intervals, in any order
    bounds               proved bounds for sums, dot products and norms
    power                the faults that a bound is sure to see

Collectives:

    collectives          their meaning
    ring, tree, gloo     message by message
    hierarchical         the same on nodes of several ranks
    schedules            all of these, printed: ``lockstep schedule``
    reduction_order      the order of summation as data

Optimizers:

    optimizers           the textbook
    optimizer_bits       torch's, bit for bit
    optimizer_intervals  every result that a conforming optimizer may give

Buckets and shards:

    buckets              which tensors share a bucket
    shards               the owner of each element
    zero                 what each rank holds and sends when
    zero_step            the same in numbers
    recipes              bytes per parameter by precision

Cost:

    cost                 bytes held, elements moved, time
    estimate             all of it of one training step; ``lockstep cost`` prints it
    language_models      tensors of known models, and their activations
    overlap              the communication that backward hides
    played               the same for any program of computing, launching and waiting
    batches, sampler     samples per step, and which of them a rank sees
    window               the mean of a window of micro-batches on all ranks, by a policy
    experts              gradients and norms of parameters that belong to some ranks of a mesh
    dealing              what samples dealt to ranks must keep, in any order

Arguments:

    checks               counts and stages that cannot be
"""

if __name__ != "lockstep.oracle":
    raise ImportError(f"{__file__} belongs to Lockstep and is imported as lockstep.oracle, not as {__name__}")
