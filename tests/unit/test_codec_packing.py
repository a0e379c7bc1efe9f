from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from freewheel.codecs.packing import (
    index_bits,
    pack,
    pack_indices,
    packed_bytes,
    packed_index_bytes,
    unpack,
    unpack_indices,
)
from freewheel.codecs.rounding import half_down, half_up, restore, scale_by_power, uniform

SEED = 20240


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 63, 64, 65, 1000])
def test_every_width_packs_densely_and_comes_back(bits: int, count: int) -> None:
    values = torch.from_numpy(np.random.default_rng(count).integers(0, 2**bits, count, np.uint8))
    packed = pack(values, bits)
    expected = count if bits == 8 else bits * ((count + 7) // 8)
    assert packed.dtype == torch.uint8
    assert packed.numel() == packed_bytes(count, bits) == expected
    assert unpack(packed, bits, count).tolist() == values.tolist()


def test_two_values_of_four_bits_share_a_byte() -> None:
    # Eight values make four bytes; byte i holds value i low and value i + 4 high.
    values = torch.tensor([1, 2, 3, 4, 5, 6, 7, 15], dtype=torch.uint8)
    assert pack(values, 4).tolist() == [0x51, 0x62, 0x73, 0xF4]


def test_one_bit_a_value() -> None:
    values = torch.tensor([1, 0, 1, 1, 0, 0, 0, 1], dtype=torch.uint8)
    assert pack(values, 1).tolist() == [0b10001101]


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 40), st.data())
def test_indices_of_any_width(bits: int, data: st.DataObject) -> None:
    values = data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=40))
    packed = pack_indices(torch.tensor(values), bits)
    assert packed.numel() == packed_index_bytes(len(values), bits)
    assert unpack_indices(packed, bits, len(values)).tolist() == values


def test_index_bits_are_the_logarithm() -> None:
    limits = [1, 2, 3, 4, 5, 256, 257, 65536, 65537]
    assert [index_bits(limit) for limit in limits] == [1, 1, 2, 2, 3, 8, 9, 16, 17]


def test_float16_in_a_direction_agrees_with_numpy() -> None:
    generator = np.random.default_rng(SEED)
    size = 2.0 ** generator.uniform(-26, 15, 4000)
    wide = (size * generator.choice([-1, 1], 4000)).astype(np.float32)
    wide = np.concatenate([wide, np.float32([0, 1, -1, 65504, -65504, 2**-24, 1e-9, -1e-9])])
    nearest = wide.astype(np.float16)
    with np.errstate(over="ignore"):
        below = np.nextafter(nearest, np.float16(-np.inf))
    expected = np.where(nearest.astype(np.float32) > wide, below, nearest)
    found = half_down(torch.from_numpy(wide)).numpy()
    assert (found == expected).all()
    assert (half_up(torch.from_numpy(-wide)).numpy() == -expected).all()


def test_uniform_numbers_are_uniform() -> None:
    """Kolmogorov and Smirnov do not refuse them at 1 %, nor neighbours' independence at 1 %."""
    u = uniform(100_001, torch.float64, torch.device("cpu"), torch.Generator().manual_seed(SEED))
    values = u.numpy()
    assert values.shape == (100_001,)
    assert 0 < values.min() < values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 0.01
    for lag in (1, 2, 3, 4):
        assert stats.pearsonr(values[:-lag], values[lag:]).pvalue > 0.01


def test_uniform_numbers_are_cell_midpoints() -> None:
    """All 2**16 cells are equally likely by construction, so the mean is 1/2 exactly."""
    u = uniform(4096, torch.float64, torch.device("cpu"), torch.Generator().manual_seed(1))
    cells = u * 2**16 - 0.5
    assert torch.equal(cells, cells.round())
    assert float(cells.min()) >= 0
    assert float(cells.max()) <= 2**16 - 1


@pytest.mark.parametrize("power", [-163, -101, -100, -1, 0, 1, 100, 101, 163])
def test_powers_of_two_are_exact(power: int) -> None:
    value = 1.5 * 2.0 ** (-power // 2)
    found = float(scale_by_power(torch.tensor([value]), power))
    assert found == value * 2.0**power


def test_restore_keeps_non_finite_and_bounds_the_rest() -> None:
    x = torch.tensor([3.0, float("inf"), float("-inf"), float("nan"), -1.0])
    y = restore(x, 126, 2, torch.bfloat16)
    top = torch.finfo(torch.bfloat16).max
    assert y[:3].tolist() == [3 * 2.0**126, float("inf"), float("-inf")]
    assert bool(y[3].isnan())
    assert float(restore(torch.tensor([3.99]), 127, 2, torch.bfloat16)) == top
