"""P17, the laws of kernels: the drawn cases, the expected results, and the processes in which kernels run.

case         a case as plain data: tensors by shape, strides, offset and dtype, and the operation's arguments
cases        the strategies, and cases that are always tried first
steps        the same for fused optimizer steps, with their expected results
variants     the combinations of dtypes and options that are compiled separately: all of them, or few
ahead        compiles the variants on all cores before the laws are checked
values       the elements of tensors, in NumPy
arena        memory with poisoned guard zones around and between the elements of a tensor
runner       runs a kernel on a case
error_notes  adds the arguments of a kernel to the errors that it raises
reference    the expected results, in the oracle's arithmetic
comparing    compares results with the expected ones
under_test   the kernels under test, and the process in which they run
smaller      makes a failing case smaller
script       a failing call as a script of a few lines
law          the decorator that makes a test of a check, and its search
device       decides if kernels are interpreted or compiled on this machine
"""
