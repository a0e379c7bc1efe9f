from __future__ import annotations

import math

import pytest
import torch

from freewheel.codecs import Cast, Identity, make_codec
from freewheel.errors import ConfigError

# Significand bits after the leading one, from the formats' definitions.
MANTISSA = {"fp16": 10, "bf16": 7, "fp8_e4m3": 3, "fp8_e5m2": 2}


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("to", MANTISSA)
@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1.0, 1e8, 1e30])
def test_relative_error_is_half_a_unit_of_the_significand(to: str, scale: float) -> None:
    x = (normal(64, 64).sign() * (normal(64, 64, seed=2).abs() + 0.01)) * scale
    _, y = Cast(to).round_trip(x)
    relative = ((x.double() - y.double()) / x.double()).abs()
    assert float(relative.max()) <= 2.0 ** -(MANTISSA[to] + 1)


@pytest.mark.parametrize(
    ("to", "extra"), [("fp16", 2), ("fp8_e4m3", 2), ("fp8_e5m2", 2), ("bf16", 0)]
)
def test_bytes_are_the_formula(to: str, extra: int) -> None:
    width = 1 if to.startswith("fp8") else 2
    for shape in ((64, 512), (3,), (2, 5, 7)):
        expected = math.prod(shape) * width + extra
        assert Cast(to).num_bytes(shape, torch.float32) == expected
        assert Cast(to).encode(torch.ones(shape)).num_bytes == expected
    assert Cast(to).num_bytes((64,), torch.float16) == min(64 * width + extra, 128)


def test_bf16_is_torch_own_rounding() -> None:
    x = normal(1000)
    _, y = Cast("bf16").round_trip(x)
    assert torch.equal(y, x.bfloat16().float())


def test_fp16_is_torch_own_rounding_where_that_keeps_all_bits() -> None:
    x = normal(1000).abs() + 0.1
    _, y = Cast("fp16").round_trip(x)
    assert torch.equal(y, x.half().float())


def test_small_gradients_survive_where_plain_float16_flushes_them() -> None:
    x = 1e-9 * (normal(100).abs() + 0.5)
    assert not x.half().any()
    _, y = Cast("fp16").round_trip(x)
    assert float(((x - y) / x).abs().max()) < 1e-3


def test_large_values_survive_where_plain_float16_overflows() -> None:
    x = torch.tensor([1e6, -7e4, 3.0])
    assert bool(x.half().isinf().any())
    _, y = Cast("fp16").round_trip(x)
    assert torch.allclose(x, y, rtol=1e-3)


@pytest.mark.parametrize("to", MANTISSA)
def test_non_finite_values_pass_and_disturb_nobody(to: str) -> None:
    x = torch.tensor([1.0, math.inf, -math.inf, math.nan, -0.5, 0.0] * 2)
    _, y = Cast(to).round_trip(x)
    finite = x.isfinite()
    assert torch.equal(y[finite], x[finite])
    assert bool(y[3].isnan())
    if to == "fp8_e4m3":
        assert bool(y[1:3].isnan().all())
    else:
        assert y[1:3].tolist() == [math.inf, -math.inf]
    _, z = Cast(to).round_trip(torch.full((12,), math.nan))
    assert bool(z.isnan().all())


def test_the_largest_float_does_not_become_infinite() -> None:
    top = torch.finfo(torch.float32).max
    for to in MANTISSA:
        _, y = Cast(to).round_trip(torch.tensor([top, -top, 1.0] * 4))
        assert bool(y.isfinite().all()), to
        assert float(y[0]) >= 0.9 * top


def test_float64_keeps_its_range() -> None:
    x = torch.tensor([1e300, -2e299, 1e295] * 4, dtype=torch.float64)
    _, y = Cast("fp16").round_trip(x)
    assert torch.allclose(x, y, rtol=1e-3)


def test_unknown_format() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fp16'"):
        make_codec("cast:fp61")


def test_identity_is_the_tensor() -> None:
    x = torch.tensor([1.0, math.nan, math.inf])
    encoded = Identity().encode(x)
    assert encoded.payload[0].data_ptr() == x.data_ptr()
    z = torch.complex(normal(3), normal(3, seed=2)).conj()
    found = Identity().decode(Identity().encode(z), (3,), torch.complex64)
    assert not found.is_conj()
    assert torch.equal(found, z)
