"""Masters: 16-bit parameters that are stepped in float32 (Micikevicius et al., "Mixed precision training", ICLR 2018).

The gradient is cast to float32, which loses nothing; the float32 copy is stepped; the parameter becomes that copy,
rounded to nearest even. The rounding is known bit for bit, so an exact master gives an exact parameter.
"""

import numpy as np

from lockstep.oracle.formats import Format
from lockstep.oracle.intervals import Interval
from lockstep.oracle.lattice import FRACTION_BITS, Inexact, Lattice, to_float
from lockstep.oracle.rounding import round_array

MASTER = "float32"


def cast(master: Lattice | Interval, form: Format) -> Lattice | Interval:
    """RN(master) in the parameter's format. Inexact where it overflows or falls below the normal range.

    A rounded multiple of 2**-FRACTION_BITS is one again, since rounding only drops bits.
    """
    if isinstance(master, Interval):
        return master.round(form.name)
    rounded = round_array(to_float(master), form.name).astype(np.float64)
    fits = (np.abs(rounded) <= float(form.largest)) & ((np.abs(rounded) >= float(form.least_normal)) | (rounded == 0))
    if not fits.all():
        raise Inexact(f"{rounded[~fits][0]} does not fit {form.name}")
    return np.ldexp(rounded, FRACTION_BITS).astype(np.int64)
