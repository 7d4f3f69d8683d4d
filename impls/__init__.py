"""What is under test: one page per algorithm, written against plain `torch.distributed`.

    naive               one blocking all-reduce per parameter after backward; also with gradient accumulation
    hook                a blocking all-reduce per parameter, as soon as its gradient is final             (wrong)
    async_hook          the same, asynchronously                                                          (wrong)
    hook_order_buckets  buckets filled in the order in which hooks fire                                   (wrong)
    static_buckets      buckets fixed at construction, sent in one order on every rank
    zero1, zero2, zero3 ZeRO: optimizer state, gradients too, parameters too are shared out over ranks
    sharded, shards, sharded_optimizer   what the three have in common
    kernels             Triton: pack, unpack, average, scale, clip, norm, cast, and ZeRO's shard step
    faults              what is wrong in one known way each, for the laws to find
    twins               odd but right, for the laws to let pass
    frameworks          the same laws for packages from elsewhere, one adapter each

The three marked wrong stay as they are: each pairs up different parameters where hooks fire in different orders on
different ranks, and finding that is what this project is for.

A class takes the module to wrap, is called like it, and offers `finish_gradient_synchronization` and `no_sync` where it
needs them. Its ``claims`` say what it promises, in the words of `properties.claims`.
"""
