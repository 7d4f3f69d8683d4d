"""Many tensors as one table in device memory, cut into pieces, so that one launch reaches all of them.

A program handles a piece: a fixed number of bytes of one tensor, whatever its dtype, cut where addresses are multiples
of 16. The tensor of each piece is looked up once, when the table is made, and not by each program at each launch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

from lockstep.impls.kernels.launch import LARGER, Launcher, require_kernels
from lockstep.impls.kernels.words import ITEMS, ROWS, pointer

BYTES = 8192 * LARGER  # of a tensor that one program handles
VECTOR = 16  # bytes of the widest access
LANES = 256  # pieces that one program of `_cut` describes
FIELDS = tl.constexpr(6)  # of an entry: first piece, elements, offset in the bucket, kind, dimensions, their place

# What a tensor's elements are to a kernel: numbers, or words that are only moved. A kind is a bit of a mask.
NUMBERS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
WORDS = {1: 3, 2: 4, 4: 5, 8: 6}


@dataclass(frozen=True, eq=False)
class Table:
    """The addresses and layouts of tensors. ``entries`` leaves out tensors without elements.

    Keeps its tensors alive. It must be made again (`at`) when they are replaced, not when their values change.
    """

    tensors: tuple[torch.Tensor, ...]
    layout: torch.Tensor  # int64: FIELDS for each entry, then a size and a stride for each dimension described
    pieces: torch.Tensor  # int64, ROWS of one number for each piece, see `impls.kernels.words`
    entries: int
    elements: int
    mask: int  # kinds that occur, as bits
    strided: bool  # whether any tensor is other than its elements one behind the other
    raw: bool  # whether elements are words that are only moved
    overlapping: str  # why it cannot be written, in words: two elements of a tensor share memory; empty where none do
    shifts: tuple[int, ...]  # bytes by which each entry's address misses a multiple of VECTOR; -1 where it is strided
    index: tl.dtype = tl.int64  # of offsets; narrower only to show what would overflow

    @property
    def blocks(self) -> int:
        """Programs that it takes: one for each piece."""
        return self.pieces.shape[1]

    @staticmethod
    def of(tensors: Sequence[torch.Tensor], raw: bool = False, index: tl.dtype = tl.int64) -> "Table":
        """The table of these tensors, on their device.

        ``raw``: elements are moved and not read as numbers, so that any dtype will do, all tensors having the same.
        """
        tensors = tuple(tensors)
        check(tensors, raw)
        fields: list[int] = []
        described: list[int] = []
        places: list[tuple[int, int]] = []  # (entry, where its description begins)
        addresses: list[int] = []
        shifts: list[int] = []
        blocks = elements = mask = 0
        overlapping = ""
        for position, tensor in enumerate(tensors):
            count = tensor.numel()
            if count == 0:
                continue
            kind = kind_of(tensor.dtype, raw)
            dimensions = [] if tensor.is_contiguous() else collapse(tensor.shape, tensor.stride())
            if dimensions:
                if not overlapping and overlaps(tensor):
                    shape = f"shape {tuple(tensor.shape)} and strides {tensor.stride()}"
                    overlapping = f"tensor {position} has {shape}: elements share memory, so it cannot be written"
                places.append((len(addresses), len(described)))
                described += [number for pair in dimensions for number in pair]
            address, size = tensor.data_ptr(), tensor.dtype.itemsize
            shift = -1 if dimensions else address % VECTOR
            fields += [blocks, count, elements, kind, len(dimensions), 0]
            blocks += -(-(count * size + max(shift, 0)) // BYTES)
            elements += count
            mask |= 1 << kind
            addresses.append(address)
            shifts.append(shift)
        for entry, begin in places:
            fields[entry * FIELDS.value + FIELDS.value - 1] = len(fields) + begin
        device = tensors[0].device if tensors else torch.device("cpu")
        numbers = upload(fields + described + addresses, device)
        layout, found = numbers.split([len(fields) + len(described), len(addresses)])
        pieces = cut(layout, found, blocks, bool(places), index)
        return Table(
            tensors,
            layout,
            pieces,
            len(addresses),
            elements,
            mask,
            bool(places),
            raw,
            overlapping,
            tuple(shifts),
            index,
        )

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
        addresses = [tensor.data_ptr() for tensor in tensors if tensor.numel()]
        if any(shift not in (-1, address % VECTOR) for address, shift in zip(addresses, self.shifts, strict=True)):
            return Table.of(tensors, self.raw, self.index)  # pieces are cut at other places
        found = upload(addresses, self.layout.device)
        return replace(self, tensors=tensors, pieces=cut(self.layout, found, self.blocks, self.strided, self.index))


def cut(layout: torch.Tensor, addresses: torch.Tensor, blocks: int, strided: bool, index: tl.dtype) -> torch.Tensor:
    """The pieces of a table, described on its device: int64, ROWS x ``blocks``."""
    pieces = torch.empty((ROWS.value if strided else ROWS.value - 2, blocks), dtype=torch.int64, device=layout.device)
    if blocks:
        arguments = (layout.data_ptr(), addresses.data_ptr(), pieces.data_ptr(), len(addresses), blocks)
        _CUT(-(-blocks // LANES), arguments, STRIDED=strided, BYTES=BYTES, LANES=LANES, INDEX=index)
    return pieces


@triton.jit(do_not_specialize=["layout", "addresses", "pieces", "entries", "blocks"])
def _cut(
    layout: tl.int64,
    addresses: tl.int64,
    pieces: tl.int64,
    entries: tl.int64,
    blocks: tl.int64,
    STRIDED: tl.constexpr,
    BYTES: tl.constexpr,
    LANES: tl.constexpr,
    INDEX: tl.constexpr,
):
    """The begin of each piece, in memory and in the bucket, and its number of elements."""
    layout, addresses, pieces = pointer(layout, 6), pointer(addresses, 6), pointer(pieces, 6)
    block = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = block < blocks
    # The last entry whose first piece is not after this one.
    entry = tl.zeros([LANES], tl.int64)
    left = entries
    while left > 1:
        half = left // 2
        entry = tl.where(tl.load(layout + (entry + half) * FIELDS) <= block, entry + half, entry)
        left -= half
    fields = layout + entry * FIELDS
    address, kind = tl.load(addresses + entry), tl.load(fields + 3)
    size = (ITEMS >> (4 * kind)) & 15
    shift = (address % 16) // size
    if STRIDED:
        dimensions = tl.load(fields + 4)
        shift = tl.where(dimensions > 0, 0, shift)
    start = ((block - tl.load(fields)).to(INDEX) * (BYTES // size).to(INDEX)).to(tl.int64) - shift
    end = tl.minimum(start + BYTES // size, tl.load(fields + 1))
    start = tl.maximum(start, 0)
    place = pieces + block
    if STRIDED:
        tl.store(place + 3 * blocks, start, inside)
        tl.store(place + 4 * blocks, tl.where(dimensions > 0, tl.load(fields + 5) * 256 + dimensions, 0), inside)
        address += tl.where(dimensions > 0, 0, start * size)
    else:
        address += start * size
    tl.store(place, address, inside)
    tl.store(place + blocks, tl.load(fields + 2) + start, inside)
    tl.store(place + 2 * blocks, (end - start) * 8 + kind, inside)


_CUT = Launcher(_cut)


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
    """The kind of this dtype's elements for a kernel. Raises ValueError for a dtype that is no number to it."""
    if raw and dtype.itemsize in WORDS:
        return WORDS[dtype.itemsize]
    if raw or dtype not in NUMBERS:
        wanted = "elements of 1, 2, 4 or 8 bytes" if raw else "float32, bfloat16 or float16"
        raise ValueError(f"{dtype} is not for this kernel: it takes {wanted}")
    return NUMBERS[dtype]


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
    """True if two elements may share memory: sorted by stride, each dimension must step over all smaller ones."""
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


def _layout(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} of shape {tuple(tensor.shape)} and strides {tensor.stride()}"
