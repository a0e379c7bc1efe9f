"""Small integers into bytes, and back: the dense packing of 1 to 8 bits a value, and of indices.

A width is cut into parts of 4, 2 and 1 bits (5 = 4 + 1), and each part is packed by shifting whole
contiguous blocks over one another, so that every operation is one vector instruction stream on CPU
and CUDA alike and no value straddles two bytes.
"""

from __future__ import annotations

import torch
from torch import Tensor


def packed_bytes(num_values: int, bits: int) -> int:
    """Return the bytes of ``num_values`` packed values: ``bits * ceil(n / 8)``, or n at 8 bits.

    Example:
        >>> from freewheel.codecs.packing import packed_bytes
        >>> packed_bytes(16, 3), packed_bytes(17, 3), packed_bytes(17, 8)
        (6, 9, 17)
    """
    return num_values if bits == 8 else bits * -(-num_values // 8)


def pack(values: Tensor, bits: int) -> Tensor:
    """Pack unsigned integers of at most 8 bits.

    Args:
        values: (N,) uint8, each below ``2**bits``.
        bits: 1 to 8.

    Returns:
        ``packed_bytes(N, bits)`` of uint8, on the same device.

    Example:
        >>> import torch
        >>> from freewheel.codecs.packing import pack, unpack
        >>> packed = pack(torch.tensor([1, 7, 4, 0, 2], dtype=torch.uint8), 3)
        >>> packed.numel(), unpack(packed, 3, 5).tolist()
        (3, [1, 7, 4, 0, 2])
    """
    if bits == 8:
        return values
    eighth = -(-values.numel() // 8)
    if values.numel() % 8:
        values = torch.cat([values, values.new_zeros(8 * eighth - values.numel())])
    packed = values.new_empty(bits * eighth)
    start = shift = 0
    for width in _widths(bits):
        blocks = values.view(8 // width, width * eighth)
        if width != bits:
            blocks = (blocks >> shift) & (2**width - 1)
        part = packed[start : start + width * eighth].copy_(blocks[0])
        for place in range(1, 8 // width):
            part |= blocks[place] << (place * width)
        start, shift = start + width * eighth, shift + width
    return packed


def unpack(packed: Tensor, bits: int, num_values: int) -> Tensor:
    """Undo ``pack``.

    Args:
        packed: ``packed_bytes(num_values, bits)`` of uint8.
        bits: 1 to 8.
        num_values: N.

    Returns:
        (N,) uint8.
    """
    if bits == 8:
        return packed
    eighth = packed.numel() // bits
    values = packed.new_empty(8 * eighth)
    start = shift = 0
    for width in _widths(bits):
        blocks = values.view(8 // width, width * eighth)
        part = packed[start : start + width * eighth]
        for place in range(8 // width):
            block = (part >> (place * width)) & (2**width - 1)
            if shift:
                blocks[place] |= block << shift
            else:
                blocks[place] = block
        start, shift = start + width * eighth, shift + width
    return values[:num_values]


def index_bits(limit: int) -> int:
    """Return the bits of an index below ``limit``, at least 1."""
    return max(1, (limit - 1).bit_length())


def packed_index_bytes(num_values: int, bits: int) -> int:
    """Return the bytes that ``pack_indices`` makes."""
    return sum(packed_bytes(num_values, min(8, bits - low)) for low in range(0, bits, 8))


def pack_indices(values: Tensor, bits: int) -> Tensor:
    """Pack non-negative int64 values (N,) of any width below 63 bits, eight bits at a time.

    Example:
        >>> import torch
        >>> from freewheel.codecs.packing import pack_indices, unpack_indices
        >>> packed = pack_indices(torch.tensor([511, 0, 256]), 9)
        >>> packed.numel(), unpack_indices(packed, 9, 3).tolist()
        (4, [511, 0, 256])
    """
    return torch.cat(
        [
            pack(((values >> low) & 255).to(torch.uint8), min(8, bits - low))
            for low in range(0, bits, 8)
        ]
    )


def unpack_indices(packed: Tensor, bits: int, num_values: int) -> Tensor:
    """Undo ``pack_indices``: (N,) int64."""
    values = torch.zeros(num_values, dtype=torch.int64, device=packed.device)
    start = 0
    for low in range(0, bits, 8):
        width = min(8, bits - low)
        end = start + packed_bytes(num_values, width)
        values |= unpack(packed[start:end], width, num_values).to(torch.int64) << low
        start = end
    return values


def _widths(bits: int) -> list[int]:
    """Return the powers of two that ``bits`` is the sum of, largest first."""
    return [width for width in (4, 2, 1) if bits & width]
