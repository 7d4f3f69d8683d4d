"""The Triton kernels around communication: what happens to gradients before and after a collective, each in one pass.

    launch   a kernel as a program that is known by its constants alone, launched without a second look
    table    many tensors as one table in device memory, cut into pieces of a few kilobytes
    words    what kernels share: reading a piece of a table, each dtype, rounding
    pack     many tensors into one contiguous bucket, and back; with a cast, a scale or an average on the way
    scale    average, scale and clip in place, in one pass, with the coefficient on the device: `pack`'s kernel too
    norm     the 2-norm of a list, in float32, also where squares overflow or underflow; the clipping coefficient
    step     ZeRO's shard step: float32 masters by SGD or AdamW, the 16-bit parameter written in the same pass
    suite    all of them under the names that the laws of kernels look for

They run on CUDA tensors, and on CPU tensors under Triton's interpreter (TRITON_INTERPRET=1, set before triton is
imported). What holds for all:

  - Nothing waits for the device. Lengths, counts and scales are arguments at run time: no compilation per length.
  - Arithmetic is float32, and each result is rounded to nearest even once when it is stored. Division and square root
    are correctly rounded. Products are not fused into sums, except in the sum of squares, whose order is not promised
    either; so that everything but the norm has predictable bits.
  - Offsets have 64 bits. Accesses are 16 bytes wide where addresses allow it, decided on the device: tensors are cut
    into pieces at multiples of 16 bytes, and what is left at either end goes element by element.
  - A program takes a few kilobytes whatever the dtype, and so few registers that a multiprocessor is full of programs:
    while some wait for memory, others use it. `impls/tests/test_kernels_ptx.py` holds both.
  - A program writes only elements of its destination.
"""
