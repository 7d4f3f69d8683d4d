"""The binary floating-point formats that gradients are held, summed and sent in.

A format F(p, emin) has p significand bits, the hidden one included, and least normal 2**emin
(IEEE 754-2019, table 3.5; bfloat16: Intel, "BFLOAT16 - Hardware Numerics Definition", 2018).
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Format:
    """One binary format. ``precision`` and the exponents count bits; the rest follows from them."""

    name: str
    precision: int
    emin: int
    emax: int
    numpy: np.dtype

    @cached_property
    def bytes(self) -> int:
        """Bytes per element."""
        return int(self.numpy.itemsize)

    @cached_property
    def unit_roundoff(self) -> Fraction:
        """u = 2**-p: the largest relative error of one rounding to nearest."""
        return Fraction(1, 2**self.precision)

    @cached_property
    def least_subnormal(self) -> Fraction:
        """eta = 2**(emin - p + 1): every finite value is a multiple of it."""
        return Fraction(2) ** (self.emin - self.precision + 1)

    @cached_property
    def least_normal(self) -> Fraction:
        """2**emin."""
        return Fraction(2) ** self.emin

    @cached_property
    def largest(self) -> Fraction:
        """(2 - 2**(1 - p)) * 2**emax: the largest finite value."""
        return (2 - Fraction(1, 2 ** (self.precision - 1))) * Fraction(2) ** self.emax


FORMATS = {
    form.name: form
    for form in (
        Format("float64", 53, -1022, 1023, np.dtype(np.float64)),
        Format("float32", 24, -126, 127, np.dtype(np.float32)),
        Format("float16", 11, -14, 15, np.dtype(np.float16)),
        Format("bfloat16", 8, -126, 127, np.dtype(ml_dtypes.bfloat16)),
    )
}
