"""P17, the laws of kernels: what is drawn, what a kernel must give, and where it runs.

case         a case as plain data: tensors by shape, strides, offset and dtype, and what is done to them
cases        what a law draws, and what it tries by hand before that
steps        the same for fused optimizer steps, with what they must give
variants     dtypes and options, each combination of which is compiled anew: all of them, or few
ahead        compiles what the laws draw, on all cores, before they are held
values       the elements of tensors, in NumPy
arena        memory with poisoned guard zones around and between the elements of a tensor
runner       runs a kernel on a case, where the world's ranks are
error_notes  what a kernel was given, in words, where it raises
reference    what must come out, in the oracle's arithmetic
comparing    whether it has come out
under_test   kernels under test, and the process in which they run
smaller      makes a failing case smaller
script       a failing call as a script of a few lines
law          the decorator that makes a law of a check, and its search
device       interpreted or compiled: what this machine can do
"""
