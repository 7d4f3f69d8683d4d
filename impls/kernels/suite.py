"""The shipped kernels under the names that the laws of kernels look for; a user's own are met in the same way."""

from lockstep.impls.kernels import norm as norms
from lockstep.impls.kernels import pack as packing
from lockstep.impls.kernels import scale as scaling
from lockstep.impls.kernels import step as steps


class Kernels:
    """A namespace of functions. One that is missing, or lacks an argument, is not claimed."""

    claims = {"kernels": True}

    pack = staticmethod(packing.pack)
    unpack = staticmethod(packing.unpack)
    cast = staticmethod(packing.cast)
    scale_ = staticmethod(scaling.scale_)
    norm = staticmethod(norms.norm)
    clip_coefficient = staticmethod(norms.clip_coefficient)
    average_and_clip_ = staticmethod(scaling.average_and_clip_)
    sgd_step = staticmethod(steps.sgd_step)
    adamw_step = staticmethod(steps.adamw_step)
