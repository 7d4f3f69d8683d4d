"""Interpreted or compiled: kernels run on a GPU if there is one, else in Triton's interpreter."""

import ctypes
import os


def gpus() -> int:
    """The number of CUDA devices, asked of the driver itself, because torch takes seconds to import."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0


def choose() -> str:
    """Choose "interpreted" or "compiled" before triton is imported. Child processes inherit the choice.

    A TRITON_INTERPRET that is set already is kept.
    """
    if gpus() == 0:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    return "interpreted" if os.environ.get("TRITON_INTERPRET") == "1" else "compiled"
