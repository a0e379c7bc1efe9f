"""Rounding: random offsets that cost little, float16 in a given direction, powers of two."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Beyond 2**±this a power of two is applied in two halves, lest it leave the range of float32.
_SAFE_EXPONENT = 100


def uniform(
    count: int, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Tensor:
    """Draw ``count`` numbers in (0, 1) from 16 random bits each.

    They are the midpoints of 65,536 equal cells, so that rounding ``floor(x + u)`` is unbiased to
    2**-17 of a level; four of them cost one draw of the generator, on its own device.

    Args:
        count: how many.
        dtype: a float dtype.
        device: where they are needed.
        generator: where they come from.

    Returns:
        (count,) of ``dtype`` on ``device``.

    Example:
        >>> import torch
        >>> from freewheel.codecs.rounding import uniform
        >>> generator = torch.Generator().manual_seed(0)
        >>> u = uniform(10_000, torch.float32, torch.device("cpu"), generator)
        >>> bool((u > 0).all() and (u < 1).all()), round(float(u.mean()), 2)
        (True, 0.5)
    """
    words = torch.empty(-(-count // 4), dtype=torch.int64, device=generator.device)
    words.random_(-(2**63), None, generator=generator)
    lanes = words.view(torch.int16)[:count].to(device).to(dtype)
    return lanes.mul_(2.0**-16).add_(0.5 + 2.0**-17)


def half_down(values: Tensor) -> Tensor:
    """Return the largest float16 not above each value; all must lie within ±65504.

    Example:
        >>> import torch
        >>> from freewheel.codecs.rounding import half_down
        >>> half_down(torch.tensor([1.0, 1.0002, -1.0002, -1e-9])).tolist()
        [1.0, 1.0, -1.0009765625, -5.960464477539063e-08]
    """
    halves = values.to(torch.float16)
    bits = halves.view(torch.int16)
    # Patterns of one sign are in order of magnitude, so the next one down is one nearer to zero,
    # or one further off for negative ones, to which -0.0 belongs: its sign as an integer is -1.
    return (bits - bits.sign().mul_(halves > values)).view(torch.float16)


def half_up(values: Tensor) -> Tensor:
    """Return the smallest float16 not below each value; all must lie within ±65504."""
    return -half_down(-values)


def exponent(magnitude: float) -> int:
    """Return e with ``2**(e - 1) <= magnitude < 2**e``, and 0 for zero."""
    return math.frexp(magnitude)[1]


def scale_by_power(values: Tensor, power: int) -> Tensor:
    """Return ``values * 2**power``, exact also where ``2**power`` is no float32.

    Example:
        >>> import torch
        >>> from freewheel.codecs.rounding import scale_by_power
        >>> float(scale_by_power(torch.tensor([2.0**-149]), 160))
        2048.0
    """
    if abs(power) <= _SAFE_EXPONENT:
        return values * 2.0**power
    half = power // 2
    return values * 2.0**half * 2.0 ** (power - half)


def is_safe_power(power: int) -> bool:
    """Return whether ``2**power`` and its inverse are well inside the range of float32."""
    return abs(power) <= _SAFE_EXPONENT


def restore(values: Tensor, power: int, headroom: int, dtype: torch.dtype) -> Tensor:
    """Return ``values * 2**power`` as ``dtype``, kept within its range where they are finite.

    Decoded values may lie a little beyond the largest one encoded, which may be the dtype's own.

    Args:
        values: float32 or float64, of magnitude below ``2**headroom``; NaN and infinities stay.
        power: any integer.
        headroom: see ``values``.
        dtype: a float dtype.

    Example:
        >>> import torch
        >>> from freewheel.codecs.rounding import restore
        >>> restore(torch.tensor([32770.0, 3.0, float("inf")]), 1, 16, torch.float16).tolist()
        [65504.0, 6.0, inf]
    """
    limit = torch.finfo(dtype).max
    if power + headroom >= exponent(limit):
        top = scale_by_power(torch.full((), limit, dtype=values.dtype), -power).item()
        values = values.where(values.isinf(), values.clamp(-top, top))
    return (values if power == 0 else scale_by_power(values, power)).to(dtype)


def within(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``values`` as ``dtype``; what is finite but beyond its range becomes its largest."""
    limit = torch.finfo(dtype).max
    return values.where(values.isinf(), values.clamp(-limit, limit)).to(dtype)
