"""P17, the laws of kernels: what is drawn, what a kernel must give, and where it runs.

cases       what a law draws: tensors by shape, strides, offset, dtype and kind of values
steps       the same for fused optimizer steps, with what they must give
values      the elements of tensors, in NumPy
arena       memory with poisoned guard zones around and between the elements of a tensor
runner      runs a kernel on a case, where the world's ranks are
calls       what a kernel was given, in words, where it raises
expected    what must come out, in the oracle's arithmetic
held        kernels under test, and the decorator that makes a law of a check
device      interpreted or compiled: what this machine can do
"""
