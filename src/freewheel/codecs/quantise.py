"""Few-bit uniform quantisation with a float16 scale for each group of values."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from freewheel.codecs.base import (
    Encoded,
    FloatCodec,
    Key,
    Layout,
    codecs,
    require_finite,
    work_dtype,
)
from freewheel.codecs.grouping import Per, check_per, group_shape, grouped
from freewheel.codecs.packing import pack, packed_bytes, unpack
from freewheel.codecs.rounding import (
    exponent,
    half_down,
    half_up,
    is_safe_power,
    restore,
    scale_by_power,
    uniform,
)
from freewheel.errors import ConfigError, WireError, nearest

_ROUNDINGS = ("stochastic", "nearest")
_RANGES = ("minmax", "absmax")

#: The tensor is scaled by a power of two to just below this one, the middle of float16's range.
_TOP_EXPONENT = 14

#: No power of two of a float64 is beyond this one.
_LARGEST_POWER = 1200


@codecs.register("quantise")
class Quantise(FloatCodec):
    """Round each value to one of ``2**bits`` levels between its group's bounds, and pack the bits.

    With ``range = "minmax"`` a group with smallest value l and largest h has the levels
    ``l' + c * s``, c = 0 .. 2**bits - 1, where l' is l rounded down to float16 and s is
    (h - l') / (2**bits - 1) rounded up to float16: no value falls outside. With ``"absmax"`` the
    levels are ``c * s``, c = -k .. k with k = 2**(bits - 1) - 1, so that zero is exact (at 1 bit:
    -s and s). A group of equal values that float16 holds, of zeros above all, comes back exactly.

    ``rounding = "stochastic"`` takes the level below with probability (distance to the one above)
    / s, so that the mean over the generator's draws is the value itself (to 2**-17 of a level).
    ``"nearest"`` halves the largest error, to s / 2, and is biased.

    Bytes: ``bits * ceil(N / 8)`` (N at 8 bits) ``+ 2 * (1 + 2 G)`` with minmax, ``+ 2 * (1 + G)``
    with absmax, for N values in G groups. One float16 holds the exponent of the whole tensor, so
    that scales keep their precision for gradients of 1e-30 as for activations of 1e+30.

    Non-finite values are refused.

    Args:
        bits: 1 to 8.
        per: values that share a scale: ``"sample"`` (one index of the first dimension), ``"row"``
            (the last dimension), ``"tensor"``, or the length of blocks of consecutive values.
        rounding: ``"stochastic"`` (needs a generator) or ``"nearest"``.
        range: ``"minmax"`` (best for activations) or ``"absmax"`` (keeps zeros).

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> import torch
        >>> from freewheel.codecs import Quantise
        >>> codec = Quantise(bits=2, rounding="nearest")
        >>> x = torch.tensor([[0.0, 1.0, 2.2, 3.0] * 4, [-3.0, 0.0, 3.0, 0.0] * 4])
        >>> encoded = codec.encode(x)
        >>> codec.decode(encoded, x.shape, x.dtype)[:, :4]
        tensor([[ 0.,  1.,  2.,  3.],
                [-3.,  1.,  3.,  1.]])
        >>> encoded.num_bytes, codec.num_bytes((64, 512), torch.float32)
        (18, 8450)

    References:
        Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and
        encoding", 2017.
    """

    name = "quantise"

    def __init__(
        self,
        bits: int = 4,
        per: Per = "sample",
        rounding: str = "stochastic",
        range: str = "minmax",
    ) -> None:
        if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
            raise ConfigError(
                f"bits must be an integer from 1 to 8, got {bits!r}; for 16 use codec cast"
            )
        if rounding not in _ROUNDINGS:
            raise ConfigError(f"rounding is unknown: {rounding!r}{nearest(rounding, _ROUNDINGS)}")
        if range not in _RANGES:
            raise ConfigError(f"range is unknown: {range!r}{nearest(range, _RANGES)}")
        self.bits = bits
        self.per = check_per(per)
        self.rounding = rounding
        self.range = range
        self.unbiased = rounding == "stochastic"

    def _layout(self, shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
        num_groups, _ = group_shape(shape, self.per)
        scales = 1 + num_groups * (2 if self.range == "minmax" else 1)
        return (
            ((packed_bytes(math.prod(shape), self.bits),), torch.uint8),
            ((scales,), torch.float16),
        )

    def _encode(self, tensor: Tensor, key: Key, generator: torch.Generator | None) -> Encoded:
        if generator is None and self.rounding == "stochastic":
            raise ConfigError(
                "stochastic rounding needs a torch.Generator, got none; pass generator=, or set "
                'rounding = "nearest"'
            )
        num_values = tensor.numel()
        shape = group_shape(tensor.shape, self.per)
        x_GM = grouped(tensor.reshape(-1).to(work_dtype(tensor.dtype)), *shape)
        bounds_2G = torch.stack([x_GM.amin(1), x_GM.amax(1)])
        biggest = float(bounds_2G.abs().amax())
        require_finite(biggest, tensor, self.name, key)
        power = exponent(biggest) - _TOP_EXPONENT
        scales = self._scales(*scale_by_power(bounds_2G, -power))
        if is_safe_power(power):
            low_G1, step_G1 = self._levels(scales, power, x_GM.dtype)
        else:
            x_GM = scale_by_power(x_GM, -power)
            low_G1, step_G1 = self._levels(scales, 0, x_GM.dtype)
        # A step of 0 is that of equal values, which all have code 0.
        codes_GM = (x_GM - low_G1).div_(step_G1.clamp_min(torch.finfo(step_G1.dtype).tiny))
        if self.rounding == "nearest":
            codes_GM += 0.5
        elif generator is not None:
            draws = uniform(codes_GM.numel(), codes_GM.dtype, codes_GM.device, generator)
            codes_GM += draws.view_as(codes_GM)
        codes = codes_GM.clamp_(0, self._top).to(torch.uint8).view(-1)[:num_values]
        head = scales.new_full((1,), float(power))
        return Encoded((pack(codes, self.bits), torch.cat([head, scales])))

    def _decode(
        self, encoded: Encoded, shape: tuple[int, ...], dtype: torch.dtype, key: Key
    ) -> Tensor:
        packed, scales = encoded.payload
        head = float(scales[0])
        if not (head.is_integer() and abs(head) < _LARGEST_POWER):
            raise WireError(
                f"codec {self.name!r} got the exponent {head}; it is an integer within "
                f"±{_LARGEST_POWER}; the payload is damaged or of another codec"
            )
        power, num_values = int(head), math.prod(shape)
        now = power if is_safe_power(power) else 0
        low_G1, step_G1 = self._levels(scales[1:], now, work_dtype(dtype))
        codes = unpack(packed, self.bits, num_values).to(step_G1.dtype)
        values_GM = grouped(codes, *group_shape(shape, self.per)) * step_G1
        values_GM += low_G1
        headroom = _TOP_EXPONENT + 2 + now
        values = restore(values_GM.view(-1)[:num_values], power - now, headroom, dtype)
        return values.view(shape)

    @property
    def _top(self) -> int:
        """The largest code: an even one for absmax, so that one level is zero."""
        return int(2**self.bits) - (2 if self.range == "absmax" and self.bits > 1 else 1)

    def _scales(self, low_G: Tensor, high_G: Tensor) -> Tensor:
        """Round bounds outwards to float16: low and step of each group, or step alone."""
        if self.range == "absmax":
            return half_up(torch.maximum(-low_G, high_G) * (2 / self._top))
        low = half_down(low_G)
        return torch.cat([low, half_up((high_G - low.to(low_G.dtype)) / self._top)])

    def _levels(self, scales: Tensor, power: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return lowest level and step of each group, (G, 1) each, times ``2**power``."""
        wide = scales.to(dtype).mul_(2.0**power).unsqueeze(1)
        if self.range == "absmax":
            return wide * (-self._top / 2), wide
        low_G1, step_G1 = wide.chunk(2)
        return low_G1, step_G1
