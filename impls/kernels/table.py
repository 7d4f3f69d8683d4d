"""Many tensors as one table in device memory, so that one launch reaches all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import triton

BLOCK = 8192  # elements that one program handles
WARPS = 8
FIELDS = 6  # of an entry: first block, elements, offset in the bucket, kind, dimensions, where these are described

# What a tensor's elements are to a kernel: numbers, or words that are only moved. A kind is a bit of a mask.
NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
WORDS = {1: 3, 2: 4, 4: 5, 8: 6}
_CARRIERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False)
class Table:
    """Where tensors are and how they are laid out. ``entries`` leaves out tensors without elements.

    Keeps its tensors alive. It must be made again (`at`) when they are replaced, not when their values change.
    """

    tensors: tuple[torch.Tensor, ...]
    layout: torch.Tensor  # int64: FIELDS for each entry, then a size and a stride for each dimension described
    addresses: torch.Tensor  # int64, one for each entry
    entries: int
    blocks: int
    elements: int
    mask: int  # kinds that occur, as bits
    raw: bool  # whether elements are words that are only moved
    overlapping: str  # why it cannot be written, in words: two elements of a tensor share memory; empty where none do

    @staticmethod
    def of(tensors: Sequence[torch.Tensor], raw: bool = False) -> "Table":
        """The table of these tensors, on their device.

        ``raw``: elements are moved and not read as numbers, so that any dtype will do, all tensors having the same.
        """
        tensors = tuple(tensors)
        check(tensors, raw)
        fields: list[int] = []
        described: list[int] = []
        places: list[tuple[int, int]] = []  # (entry, where its description begins)
        blocks = elements = entries = mask = 0
        overlapping = ""
        for index, tensor in enumerate(tensors):
            count = tensor.numel()
            if count == 0:
                continue
            kind = kind_of(tensor.dtype, raw)
            dimensions = [] if tensor.is_contiguous() else collapse(tensor.shape, tensor.stride())
            if dimensions:
                if not overlapping and overlaps(tensor):
                    shape = f"shape {tuple(tensor.shape)} and strides {tensor.stride()}"
                    overlapping = f"tensor {index} has {shape}: elements share memory, so it cannot be written"
                places.append((entries, len(described)))
                described += [number for pair in dimensions for number in pair]
            fields += [blocks, count, elements, kind, len(dimensions), 0]
            blocks += -(-count // BLOCK)
            elements += count
            entries += 1
            mask |= 1 << kind
        for entry, begin in places:
            fields[entry * FIELDS + FIELDS - 1] = entries * FIELDS + begin
        device = tensors[0].device if tensors else torch.device("cpu")
        layout = upload(fields + described, device)
        addresses = _addresses(tensors, device)
        return Table(tensors, layout, addresses, entries, blocks, elements, mask, raw, overlapping)

    def at(self, tensors: Sequence[torch.Tensor]) -> "Table":
        """The same layout at other addresses: gradients that were allocated afresh. Only addresses are uploaded.

        ValueError where a tensor's shape, strides, dtype or device is not what it was.
        """
        tensors = tuple(tensors)
        if len(tensors) != len(self.tensors):
            raise ValueError(f"the table has {len(self.tensors)} tensors, not {len(tensors)}")
        for index, (new, old) in enumerate(zip(tensors, self.tensors, strict=True)):
            # A thousand tensors are a thousand rounds of this, at every step: nothing is built unless it is wrong.
            if new.stride() != old.stride() or new.shape != old.shape or new.dtype != old.dtype:
                raise ValueError(f"tensor {index} is {_layout(new)}, and was {_layout(old)}: make a new table")
            if new.device != old.device:
                raise ValueError(f"tensor {index} is on {new.device}, and was on {old.device}: make a new table")
            if new.is_conj() or new.is_neg():
                raise ValueError(f"tensor {index} is a lazy conjugate or negative: make it a plain tensor")
        addresses = _addresses(tensors, self.addresses.device)
        return replace(self, tensors=tensors, addresses=addresses)


def check(tensors: Sequence[torch.Tensor], raw: bool) -> None:
    """ValueError for what kernels cannot read."""
    for index, tensor in enumerate(tensors):
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            raise ValueError(f"tensor {index} is sparse, or a lazy conjugate or negative: make it a plain tensor")
        if tensor.device != tensors[0].device:
            raise ValueError(f"tensor {index} is on {tensor.device}, the first on {tensors[0].device}")
        if raw and tensor.dtype != tensors[0].dtype:
            raise ValueError(f"tensor {index} is {tensor.dtype}, the first {tensors[0].dtype}: moving needs one dtype")
        kind_of(tensor.dtype, raw)
    if tensors:
        require_kernels(tensors[0].device)


def kind_of(dtype: torch.dtype, raw: bool) -> int:
    """What elements of this dtype are to a kernel. ValueError for a dtype that is no number to it."""
    if raw and dtype.itemsize in WORDS:
        return WORDS[dtype.itemsize]
    if raw or dtype not in NUMBERS:
        wanted = "elements of 1, 2, 4 or 8 bytes" if raw else "float32, bfloat16 or float16"
        raise ValueError(f"{dtype} is not for this kernel: it takes {wanted}")
    return NUMBERS[dtype]


def carried(tensor: torch.Tensor, raw: bool) -> torch.Tensor:
    """The same memory under a dtype that Triton moves bit for bit."""
    if raw:
        return tensor.view(_CARRIERS[tensor.dtype.itemsize])
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def collapse(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """(size, stride) of the fewest dimensions that visit the same elements in the same order, innermost first."""
    merged: list[tuple[int, int]] = []
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if merged and stride == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return merged


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements may share memory; sorted by stride, each dimension must step over all smaller ones."""
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in collapse(tensor.shape, tensor.stride())):
        if stride <= reach:
            return tensor.numel() > 0
        reach += stride * (size - 1)
    return False


def upload(numbers: list[int], device: torch.device) -> torch.Tensor:
    """int64 numbers on the device; the host does not wait for the copy."""
    host = torch.tensor(numbers, dtype=torch.int64)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def require_kernels(device: torch.device) -> None:
    """ValueError where Triton cannot run on this device."""
    if device.type != "cuda" and not interpreted():
        raise ValueError(f"tensors on {device}: kernels need CUDA, or TRITON_INTERPRET=1 before triton is imported")


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter, on the CPU."""
    return bool(triton.knobs.runtime.interpret)


def _addresses(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    return upload([tensor.data_ptr() for tensor in tensors if tensor.numel()], device)


def _layout(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)} and strides {tensor.stride()}"
