from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from freewheel.codecs import Quantise, make_codec
from freewheel.errors import ConfigError, NonFiniteError, WireError

SEED = 7


def seeded(seed: int = SEED) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=seeded(seed))


def levels_of(group: np.ndarray, bits: int) -> tuple[float, float]:
    """Lowest level and step by the docstring's formula, in float64, but for float16's rounding."""
    low, high = float(group.min()), float(group.max())
    return low, (high - low) / (2**bits - 1)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_error_is_bounded_by_the_step(bits: int, rounding: str) -> None:
    x = normal(16, 100)
    _, y = Quantise(bits, rounding=rounding).round_trip(x, generator=seeded())
    for row, found in zip(x.double().numpy(), y.double().numpy(), strict=True):
        _, step = levels_of(row, bits)
        # Bounds are rounded outwards to float16: the step grows by at most 2**-10 of itself,
        # and by 2**-11 of the lowest value spread over the levels.
        slack = step * 2**-10 + abs(row.min()) * 2**-11
        limit = (step / 2 if rounding == "nearest" else step) + slack
        assert np.abs(row - found).max() <= limit


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("shape", [(64, 512), (3, 33), (7,), (2, 5, 7)])
def test_bytes_are_the_formula(bits: int, shape: tuple[int, ...]) -> None:
    n, samples = math.prod(shape), shape[0] if len(shape) > 1 else 1
    rows = n // shape[-1] if len(shape) > 1 else 1
    codes = n if bits == 8 else bits * math.ceil(n / 8)
    cases = {
        "sample": codes + 2 * (1 + 2 * samples),
        "row": codes + 2 * (1 + 2 * rows),
        "tensor": codes + 2 * (1 + 2),
        "64": codes + 2 * (1 + 2 * math.ceil(n / 64)),
    }
    for per, expected in cases.items():
        codec = make_codec(f"quantise:{bits},per={per}")
        encoded = codec.encode(torch.ones(shape), generator=seeded())
        assert encoded.num_bytes == codec.num_bytes(shape, torch.float32) == min(expected, 4 * n)
        absmax = make_codec(f"quantise:{bits},per={per},range=absmax")
        groups = (expected - codes - 2) // 4
        assert absmax.num_bytes(shape, torch.float32) == min(codes + 2 + 2 * groups, 4 * n)


def test_values_on_levels_are_exact() -> None:
    x = torch.arange(16.0).repeat(4, 8)
    for rounding in ("nearest", "stochastic"):
        _, y = Quantise(4, rounding=rounding).round_trip(x, generator=seeded())
        assert torch.equal(x, y)


def test_relu_zeros_stay_zero() -> None:
    x = normal(32, 64).relu()
    _, y = Quantise(2).round_trip(x, generator=seeded())
    assert not y[x == 0].any()


@pytest.mark.parametrize("bits", range(2, 9))
def test_absmax_keeps_zeros_of_either_sign_of_neighbours(bits: int) -> None:
    x = normal(32, 64)
    x[:, ::3] = 0
    _, y = Quantise(bits, range="absmax").round_trip(x, generator=seeded())
    assert not y[x == 0].any()
    top = 2 ** (bits - 1) - 1
    levels = (y / y.abs().amax(1, keepdim=True) * top).round()
    assert float(levels.abs().max()) == top


def test_one_bit_absmax_is_a_sign_and_a_scale() -> None:
    x = torch.tensor([[0.5, -2.0, 1.5, -0.25] * 8])
    _, y = Quantise(1, range="absmax", rounding="nearest").round_trip(x)
    assert torch.equal(y, 2.0 * x.sign())


def test_rows_of_equal_values_are_exact() -> None:
    x = torch.tensor([0.0, 1.0, -3.5, 1024.0]).unsqueeze(1).repeat(1, 40)
    _, y = Quantise(3).round_trip(x, generator=seeded())
    assert torch.equal(x, y)


@pytest.mark.parametrize("range_", ["minmax", "absmax"])
@pytest.mark.parametrize("bits", range(1, 9))
def test_stochastic_rounding_is_unbiased_with_the_binomial_spread(bits: int, range_: str) -> None:
    """20,000 draws of a value between two levels: mean and variance of a scaled Bernoulli.

    Each mean lies within 5 standard errors (a two-sided confidence of 1 - 6e-7) of the value.
    """
    num_draws = 20_000
    fractions = torch.tensor([0.03, 0.25, 0.5, 0.71, 0.97])
    top = 2**bits - 1 if range_ == "minmax" or bits == 1 else 2**bits - 2
    low = 0.0 if range_ == "minmax" else -top / 2
    # The levels are low, low + 1, ...: float16 holds them, so that the step is 1 exactly.
    inner = low + (torch.arange(5) % top) + fractions
    row = torch.cat([inner, torch.tensor([low, low + top])])
    x = row.expand(num_draws, 7)
    _, y = Quantise(bits, range=range_, per="tensor").round_trip(x, generator=seeded())
    for place, p in enumerate(fractions.tolist()):
        drawn = y[:, place].double()
        below = float(inner[place]) - p
        assert set(drawn.sub(below).round(decimals=4).unique().tolist()) == {0.0, 1.0}
        error = abs(float(drawn.mean()) - float(inner[place]))
        assert error < 5 * math.sqrt(p * (1 - p) / num_draws)
    assert torch.equal(y[:, 5:], x[:, 5:])


def test_the_check_above_sees_a_biased_rounding() -> None:
    x = torch.tensor([0.25, 0.0, 15.0]).expand(20_000, 3)
    _, y = Quantise(4, rounding="nearest", per="tensor").round_trip(x)
    assert abs(float(y[:, 0].mean()) - 0.25) > 5 * math.sqrt(0.25 * 0.75 / 20_000)
    assert Quantise(4).unbiased
    assert not Quantise(4, rounding="nearest").unbiased


@pytest.mark.parametrize("power", [-140, -60, -30, 0, 30, 60, 119])
def test_a_power_of_two_changes_nothing(power: int) -> None:
    """Gradients of 1e-30 are as good as activations of 1: the scales carry a common exponent."""
    x = torch.randint(-(2**8), 2**8, (16, 64), generator=seeded()).float()
    scaled = torch.ldexp(torch.ldexp(x, torch.tensor(power // 2)), torch.tensor(power - power // 2))
    _, y = Quantise(4).round_trip(x, generator=seeded())
    _, z = Quantise(4).round_trip(scaled, generator=seeded())
    if power >= -100:
        assert torch.equal(
            torch.ldexp(y, torch.tensor(power // 2)).ldexp(torch.tensor(power - power // 2)), z
        )
    else:
        # Subnormals: the result itself is rounded to multiples of 2**-149.
        assert float((y.double() * 2.0**power - z.double()).abs().max()) <= 2.0**-149


def test_groups_have_their_own_scale() -> None:
    x = torch.stack([normal(64), 1000 * normal(64, seed=2)])
    for per, limit in (("sample", 0.4), ("row", 0.4), (64, 0.4), (32, 0.4)):
        _, y = Quantise(4, per=per).round_trip(x, generator=seeded())
        assert float((x - y)[0].abs().max()) < limit
    _, y = Quantise(4, per="tensor").round_trip(x, generator=seeded())
    assert float((x - y)[0].abs().max()) > 10


def test_a_ragged_last_block() -> None:
    x = torch.cat([torch.zeros(96), torch.full((5,), 7.0)])
    _, y = Quantise(4, per=32).round_trip(x, generator=seeded())
    assert torch.equal(x, y)


def test_what_would_not_shrink_is_sent_as_it_is() -> None:
    codec = Quantise(4)
    x = normal(100, 1)
    assert codec.encode(x).payload[0].data_ptr() == x.data_ptr()
    assert codec.num_bytes((100, 1), torch.float32) == 400


def test_float64_and_half_inputs_keep_their_dtype() -> None:
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        x = normal(8, 64).to(dtype)
        encoded, y = Quantise(8, rounding="nearest").round_trip(x)
        assert y.dtype == dtype
        assert encoded.num_bytes == 512 + 2 * (1 + 2 * 8)
        assert float((x.double() - y.double()).abs().max()) < 0.03


def test_float8_inputs_are_floats_too() -> None:
    x = normal(8, 64).to(torch.float8_e4m3fn)
    _, y = Quantise(4).round_trip(x, generator=seeded())
    assert y.dtype == torch.float8_e4m3fn
    assert float((x.float() - y.float()).abs().max()) < 1


def test_refusals_say_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"bits must be an integer from 1 to 8, got 9; .*cast"):
        make_codec("quantise:9")
    with pytest.raises(ConfigError, match="did you mean 'sample'"):
        make_codec("quantise:4,per=samples")
    with pytest.raises(ConfigError, match="block length >= 1"):
        make_codec("quantise:4,per=0")
    with pytest.raises(ConfigError, match="did you mean 'nearest'"):
        make_codec("quantise:4,rounding=nearst")
    with pytest.raises(ConfigError, match="did you mean 'minmax'"):
        make_codec("quantise:4,range=minimax")
    with pytest.raises(ConfigError, match=r"torch.Generator.*rounding = \"nearest\""):
        Quantise(4).encode(normal(4, 64))
    x = normal(4, 64)
    x[0, :3] = math.inf
    with pytest.raises(NonFiniteError, match=r"3 of 256 values .*key 'h'.*cast"):
        Quantise(4).encode(x, key="h", generator=seeded())


def test_a_damaged_exponent_is_refused() -> None:
    x = normal(4, 64)
    encoded = Quantise(4).encode(x, generator=seeded())
    for bad in (0.5, math.nan, math.inf, 60000.0):
        encoded.payload[1][0] = bad
        with pytest.raises(WireError, match="exponent"):
            Quantise(4).decode(encoded, x.shape, x.dtype)
