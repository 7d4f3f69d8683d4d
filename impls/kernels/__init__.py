"""The Triton kernels around communication: what happens to gradients before and after a collective, each in one pass.

    table    many tensors as one table of addresses, lengths, strides and dtypes in device memory
    words    what kernels share: finding a block's tensor, reading and writing each dtype, rounding
    pack     many tensors into one contiguous bucket, and back; with a cast, a scale or an average on the way
    scale    average, scale and clip in place, in one pass, with the coefficient on the device
    norm     the 2-norm of a list, in float32, also where squares overflow or underflow; the clipping coefficient
    step     ZeRO's shard step: float32 masters by SGD or AdamW, the 16-bit parameter written in the same pass
    suite    all of them under the names that the laws of kernels look for

They run on CUDA tensors, and on CPU tensors under Triton's interpreter (TRITON_INTERPRET=1, set before triton is
imported). What holds for all:

  - Nothing waits for the device. Lengths, counts and scales are arguments at run time: no compilation per length.
  - Arithmetic is float32, and each result is rounded to nearest even once when it is stored. Division and square root
    are correctly rounded. Products are not fused into sums, except in the sum of squares, whose order is not promised
    either; so that everything but the norm has predictable bits.
  - Offsets have 64 bits. Wide loads are used where addresses and lengths allow it, decided on the device.
  - A program writes only elements of its destination.
"""
