"""The launching of kernels. Triton inspects every argument of every call, which takes longer than many kernels run.

All arguments of these kernels are numbers of one type each, and tensors are passed as addresses. So a program is known
by its constants alone. It is kept, and launched without another inspection.
"""

import math
from typing import Any

import torch
import triton

WARPS = 4


INTERPRETED = bool(triton.knobs.runtime.interpret)  # kernels run on the CPU, in Python: known when they are made
LARGER = 4 if INTERPRETED else 1  # times as much for a program to do, where each is a round of Python's


class Launcher:
    """A kernel and how it is compiled. Its arguments are numbers; constants come last, by name and in its order.

    ``fused``: products may be fused into sums.
    """

    def __init__(self, kernel: Any, fused: bool = False, warps: int = WARPS) -> None:
        self.kernel = kernel
        self._options = {"num_warps": warps, "enable_fp_fusion": fused}
        self._programs: dict[tuple[Any, ...], Any] = {}

    def __call__(self, blocks: int, arguments: tuple[int | float, ...], **constants: Any) -> None:
        """Runs so many blocks on the current stream; the host does not wait."""
        if INTERPRETED:
            self.kernel[(blocks,)](*arguments, **constants, **self._options)
            return
        key = (triton.runtime.driver.active.get_current_device(), *constants.values())
        program = self._programs.get(key)
        if program is None:
            program = self._programs[key] = self.compiled(arguments, constants)
        program[(blocks, 1, 1)](*arguments, *constants.values())

    def compiled(self, arguments: tuple[int | float, ...], constants: dict[str, Any]) -> Any:
        """The program for these constants; the values of the arguments do not matter."""
        return self.kernel.warmup(*arguments, grid=(1,), **constants, **self._options)


def factor(divisor: float) -> tuple[float, bool]:
    """The reciprocal of a power of two, and False: a product with it has the quotient's bits, whatever is divided.

    Any other divisor as it is, and True: a division, which costs some forty instructions for each element.
    """
    mantissa, exponent = math.frexp(divisor)
    exact = mantissa == 0.5 and abs(exponent) < 126
    return (1.0 / divisor if exact else float(divisor)), not exact


def address(tensor: torch.Tensor | None) -> int:
    """The address of a tensor's first element; 0 if there is no tensor."""
    return 0 if tensor is None else tensor.data_ptr()


def require_kernels(device: torch.device) -> None:
    """ValueError where Triton cannot run on this device."""
    if device.type != "cuda" and not INTERPRETED:
        raise ValueError(f"tensors on {device}: kernels need CUDA, or TRITON_INTERPRET=1 before triton is imported")
