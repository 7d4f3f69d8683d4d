"""Implementations to test: one page per algorithm, written against plain `torch.distributed`.

    naive               one blocking all-reduce per parameter after backward; also with gradient accumulation
    hook                a blocking all-reduce per parameter, as soon as its gradient is final             (wrong)
    async_hook          the same, asynchronously                                                          (wrong)
    hook_order_buckets  buckets filled in the order in which hooks fire                                   (wrong)
    end_of_backward     the first, hearing of the end of each backward, for what is built on it
    joined              the first, where ranks may run out of micro-batches one after the other
    static_buckets      buckets that stay as they are, sent in one order on every rank
    main_grad_buckets   fp32 main gradients in buckets, sent when backward is over
    trainer             static buckets, and what comes after backward: unscaling, clipping, an optimizer with masters
    zero1, zero2, zero3  ZeRO: optimizer state, gradients too, parameters too are shared out over ranks
    sharded, shards, sharded_optimizer  what the three have in common
    owned_parameters    a sharded optimizer as users write it: each parameter belongs whole to one rank
    wrapper             what all wrappers have in common: the same start, `no_sync`
    average             the mean after a sum, by a kernel where the tensors are on a GPU
    collective_wrappers  wrappers of collectives that autograd goes through, on rings of sends and receives
    training_loop       a training loop: one step for a window of micro-batches on each rank
    dealing             a sampler and a loader that deal samples to ranks, and go on where they were interrupted
    kernels             Triton: pack, unpack, average, scale, clip, norm, cast, and ZeRO's shard step
    faults              what is wrong in one known way each, for the laws to find
    twins               what is odd but correct, for the laws to let pass
    frameworks          the same laws for packages from elsewhere, one adapter each

The three marked wrong stay as they are: each pairs up different parameters where hooks fire in different orders on
different ranks, and finding that is what this project is for.

A class takes the module to wrap, is called like it, and offers `finish_gradient_synchronization` and `no_sync` where it
needs them. Its ``claims`` say what it promises, in the words of `properties.claims`.
"""

if __name__ != "lockstep.impls":
    raise ImportError(f"{__file__} belongs to Lockstep and is imported as lockstep.impls, not as {__name__}")
