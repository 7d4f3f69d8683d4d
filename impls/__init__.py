"""Implementations to test: one page per algorithm, written against plain `torch.distributed`.

    naive               one blocking all-reduce per parameter after backward; also with gradient accumulation
    hook                a blocking all-reduce per parameter, as soon as its gradient is final             (wrong)
    async_hook          the same, asynchronously                                                          (wrong)
    hook_order_buckets  buckets filled in the order in which hooks fire                                   (wrong)
    end_of_backward     ``naive`` with a callback at the end of each backward, a base for others
    joined              ``naive`` for ranks that run out of micro-batches one after the other
    static_buckets      buckets with fixed members, sent in one order on every rank
    main_grad_buckets   fp32 main gradients in buckets, sent when backward is over
    trainer             static buckets, and the steps after backward: unscaling, clipping, an optimizer with masters
    zero1, zero2, zero3  ZeRO: optimizer state, then gradients, then parameters are sharded over ranks
    sharded, shards, sharded_optimizer  the common parts of the three
    owned_parameters    a sharded optimizer as users write it: each parameter belongs whole to one rank
    wrapper             the base of all wrappers: the same start, `no_sync`
    average             the mean after a sum, by a kernel if the tensors are on a GPU
    collective_wrappers  wrappers of collectives that autograd can differentiate, on rings of sends and receives
    training_loop       a training loop: one step for a window of micro-batches on each rank
    experts             data parallelism in which each parameter has the ranks that it is averaged over
    dealing             a sampler and a loader that deal samples to ranks, and resume after an interruption
    kernels             Triton: pack, unpack, average, scale, clip, norm, cast, and ZeRO's shard step
    faults              implementations with one known defect each, for the laws to find
    twins               odd but correct implementations, for the laws to let pass
    frameworks          adapters for torch and other packages

The three marked wrong stay as they are. Each pairs up different parameters if hooks fire in different orders on
different ranks. Lockstep exists to find that.

A class takes the module to wrap, is called like it, and offers `finish_gradient_synchronization` and `no_sync` if it
needs them. Its ``claims`` declare its promises, in the words of `properties.claims`.
"""

if __name__ != "lockstep.impls":
    raise ImportError(f"{__file__} belongs to Lockstep and is imported as lockstep.impls, not as {__name__}")
