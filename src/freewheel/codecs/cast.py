"""Narrower floats: float16, bfloat16, and the two float8 kinds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from freewheel.codecs.base import Encoded, FloatCodec, Key, Layout, codecs, work_dtype
from freewheel.codecs.rounding import exponent, restore, scale_by_power, within
from freewheel.errors import ConfigError, nearest

_DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}


@codecs.register("cast")
class Cast(FloatCodec):
    """Send each value in a narrower float dtype, rounded to nearest.

    float16 and float8 have little range, so the tensor is first multiplied by a power of two that
    brings its largest finite magnitude to the top of that range; the exponent travels along. Only
    values below 2**-28 (fp8_e4m3: 2**-13) of the largest lose
    precision, and none overflows. bfloat16 has the range of float32 and needs no scale.

    Bytes: ``2 N`` for bf16, ``2 N + 2`` for fp16, ``N + 2`` for fp8, for N values.

    Non-finite values pass: NaN as NaN, infinities as themselves (as NaN in fp8_e4m3, which has
    none). They do not disturb the other values.

    Args:
        to: ``"fp16"``, ``"bf16"``, ``"fp8_e4m3"`` or ``"fp8_e5m2"``.

    Raises:
        ConfigError: ``to`` is none of them.

    Example:
        >>> import torch
        >>> from freewheel.codecs import Cast
        >>> codec = Cast("fp8_e4m3")
        >>> x = torch.tensor([1e-6, -3e-6, float("inf"), 0.0])
        >>> codec.decode(codec.encode(x), x.shape, x.dtype)
        tensor([ 9.5367e-07, -3.0994e-06,         nan,  0.0000e+00])

    References:
        Micikevicius et al., "FP8 formats for deep learning", 2022.
    """

    name = "cast"

    def __init__(self, to: str = "bf16") -> None:
        if to not in _DTYPES:
            raise ConfigError(f"to is unknown: {to!r}{nearest(str(to), _DTYPES)}")
        self.to = _DTYPES[to]
        self.scaled = to != "bf16"

    def _layout(self, shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
        values = (shape, self.to)
        return (values, ((1,), torch.int16)) if self.scaled else (values,)

    def _encode(self, tensor: Tensor, key: Key, generator: torch.Generator | None) -> Encoded:
        x = tensor.to(work_dtype(tensor.dtype)).contiguous()
        biggest = float(torch.maximum(-x.amin(), x.amax()))
        if not math.isfinite(biggest):
            biggest = float(x.where(x.isfinite(), 0).abs().amax())
            if self.to == torch.float8_e4m3fn:
                # It has no infinity, and some backends would send its largest value instead.
                x = x.where(x.isfinite(), math.nan)
        if self.scaled:
            # One below the limit's own exponent, so that rounding up never reaches the limit.
            power = exponent(biggest) - exponent(torch.finfo(self.to).max) + 1
            head = torch.full((1,), power, dtype=torch.int16, device=x.device)
            return Encoded((scale_by_power(x, -power).to(self.to), head))
        return Encoded((within(x, self.to),))

    def _decode(
        self, encoded: Encoded, shape: tuple[int, ...], dtype: torch.dtype, key: Key
    ) -> Tensor:
        x = encoded.payload[0].to(work_dtype(dtype))
        power = int(encoded.payload[1]) if self.scaled else 0
        return restore(x, power, exponent(torch.finfo(self.to).max), dtype)
