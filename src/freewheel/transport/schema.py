"""What the tensors of a message are: which dtypes and shapes may travel, and the limits they keep.

A schema is announced in bytes that nobody vouches for, so it is checked before memory is taken.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from freewheel.errors import ConfigError, ModelError, WireError

Buffer: TypeAlias = bytes | bytearray | memoryview

_MAX_DIMS = 32
_MAX_TENSORS = 65_535

#: Every dtype that travels, by the name that stands for it in a schema.
DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.bool, torch.complex64, torch.complex128),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
    )
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Limits:
    """How large things may be; both ends of a link should have the same.

    Args:
        piece_bytes: a larger payload travels in pieces of this many bytes.
        max_message_bytes: the most that one transfer may hold: a piece with its headers.
        max_tensor_bytes: the most that the tensors of one message may hold together.
        max_text_bytes: the most that a schema, or a meta, may hold.
        max_schemas: how many schemas one link may have agreed with one peer at a time.

    Example:
        >>> from freewheel.transport.schema import Limits
        >>> Limits(piece_bytes=1 << 20).piece_bytes
        1048576
    """

    piece_bytes: int = 4 << 20
    max_message_bytes: int = 16 << 20
    max_tensor_bytes: int = 4 << 30
    max_text_bytes: int = 1 << 20
    max_schemas: int = 256

    @property
    def max_schema_bytes(self) -> int:
        """The text of all schemas that one end keeps for the other, at most."""
        return 8 * self.max_text_bytes

    def __post_init__(self) -> None:
        room = self.max_message_bytes - 2 * self.max_text_bytes - 64
        if not 1 <= self.piece_bytes <= room:
            raise ConfigError(
                f"piece_bytes must be from 1 to max_message_bytes less room for headers "
                f"({room}), got {self.piece_bytes}; lower piece_bytes or raise max_message_bytes"
            )
        if not 1 <= self.max_schemas <= 65_535:
            raise ConfigError(f"max_schemas must be from 1 to 65535, got {self.max_schemas}")


class Schema(NamedTuple):
    """What a sender announced once: the fixed part of its messages of one sort; sizes in bytes."""

    kind: str
    tree: Any
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    total: int


def tensor_bytes(tensor: Tensor) -> memoryview:
    """Return a dense CPU tensor's bytes in row-major order, without a copy where it is contiguous.

    Raises:
        ModelError: the tensor is sparse, quantized, without data, or of a dtype that cannot travel.

    Example:
        >>> import torch
        >>> from freewheel.transport.schema import tensor_bytes
        >>> bytes(tensor_bytes(torch.tensor([1, 2], dtype=torch.int16)))
        b'\\x01\\x00\\x02\\x00'
    """
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.dtype not in NAMES:
        raise ModelError(
            f"a tensor of dtype {tensor.dtype}, layout {tensor.layout}, on {tensor.device} cannot "
            f"be sent; make it a dense tensor of one of {', '.join(DTYPES)}"
        )
    plain = tensor.is_cpu and tensor.is_contiguous()
    if not plain or tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if not tensor.numel():
        return memoryview(b"")
    # By address and not by views of torch and NumPy: these would be half of the time that sending
    # a small message takes.
    memory = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    memory.owner = tensor  # type: ignore[attr-defined]  # keeps the memory while it is sent
    return memoryview(memory).cast("B")


def views(schema: Schema, buffer: Buffer) -> tuple[Tensor, ...]:
    """Return the tensors of a schema that lie one after the other in a buffer."""
    tensors, offset = [], 0
    for dtype, shape, size in zip(schema.dtypes, schema.shapes, schema.sizes, strict=True):
        tensors.append(view(buffer, offset, dtype, shape))
        offset += size
    return tuple(tensors)


def view(buffer: Buffer, offset: int, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return a tensor over part of a buffer, or a copy where that is read-only or misaligned."""
    count = math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    if isinstance(buffer, bytes) or (isinstance(buffer, memoryview) and buffer.readonly):
        buffer, offset = bytearray(buffer[offset : offset + count * dtype.itemsize]), 0
    tensor = torch.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
    if tensor.data_ptr() % dtype.itemsize:
        aligned = bytearray(memoryview(buffer)[offset : offset + count * dtype.itemsize])
        tensor = torch.frombuffer(aligned, dtype=dtype, count=count)
    return tensor if len(shape) == 1 else tensor.view(shape)


def parse_schema(value: Any, max_tensor_bytes: int) -> Schema:
    """Check an announced schema: known dtypes, whole dimensions, sizes within the limit."""
    if type(value) is not list or len(value) != 3:
        raise WireError("a schema is not (kind, tree, tensors)")
    kind, tree, tensors = value
    if type(kind) is not str or type(tensors) is not list or len(tensors) > _MAX_TENSORS:
        raise WireError("a schema has no kind, or too many tensors")
    dtypes, shapes, sizes = [], [], []
    for entry in tensors:
        if type(entry) is not list or len(entry) != 2 or type(entry[1]) is not list:
            raise WireError("a schema's tensor is not (dtype, shape)")
        dtype = DTYPES.get(entry[0]) if type(entry[0]) is str else None
        shape = tuple(entry[1])
        if dtype is None or len(shape) > _MAX_DIMS:
            raise WireError(f"dtype {str(entry[0])[:40]} with {len(shape)} dimensions")
        # Zeros count as ones: a tensor without elements may not have absurd strides either.
        reach = dtype.itemsize
        for dim in shape:
            if type(dim) is not int or dim < 0 or reach * max(dim, 1) > max_tensor_bytes:
                raise WireError(
                    f"a dimension of {str(dim)[:40]}; tensors hold at most {max_tensor_bytes} bytes"
                )
            reach *= max(dim, 1)
        dtypes.append(dtype)
        shapes.append(shape)
        sizes.append(math.prod(shape) * dtype.itemsize)
    if sum(sizes) > max_tensor_bytes:
        raise WireError(f"tensors of {sum(sizes)} bytes together, at most {max_tensor_bytes}")
    return Schema(kind, tree, tuple(dtypes), tuple(shapes), tuple(sizes), sum(sizes))
