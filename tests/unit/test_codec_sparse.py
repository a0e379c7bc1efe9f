from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from freewheel.codecs import Encoded, LowRank, TopK, make_codec
from freewheel.errors import ConfigError, NonFiniteError, WireError


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(seed))


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.4])
def test_top_k_keeps_numpy_largest(ratio: float) -> None:
    x = normal(9, 200)
    _, y = TopK(ratio).round_trip(x)
    k = max(1, round(ratio * 200))
    for row, found in zip(x.numpy(), y.numpy(), strict=True):
        largest = np.argsort(-np.abs(row))[:k]
        expected = np.zeros_like(row)
        expected[largest] = row[largest]
        assert (found == expected).all()


def test_bytes_are_the_smaller_of_bitmap_and_indices() -> None:
    # 512 values a sample: k = 5, indices of 9 bits in two planes of 8 and 1.
    assert TopK(0.01).num_bytes((64, 512), torch.float32) == 64 * 5 * 4 + 64 * 5 + 64 * 5 // 8
    # k = 102: the bitmap of 64 * 512 bits is smaller.
    assert TopK(0.2).num_bytes((64, 512), torch.float32) == 64 * 102 * 4 + 64 * 512 // 8
    # One group of 32768 values: k = 328, indices of 15 bits.
    planes = 328 + 7 * math.ceil(328 / 8)
    assert TopK(0.01, per="tensor").num_bytes((64, 512), torch.float32) == 328 * 4 + planes
    narrow = TopK(0.2, values="cast:fp16")
    assert narrow.num_bytes((64, 512), torch.float32) == 64 * 102 * 2 + 2 + 64 * 512 // 8
    for codec in (TopK(0.01), TopK(0.2), TopK(0.01, per="tensor"), narrow):
        x = normal(64, 512)
        assert codec.encode(x).num_bytes == codec.num_bytes(x.shape, x.dtype)


def test_random_part_is_drawn_evenly_from_the_rest() -> None:
    """Chi-square over 40,000 draws does not refuse equal odds at 1 %."""
    row = torch.tensor([9.0, 8.0] + [1.0] * 18)
    x = row.expand(10_000, 20)
    _, y = TopK(0.3, random=0.67).round_trip(x, generator=seeded())
    assert bool((y[:, :2] == row[:2]).all())
    assert bool(((y != 0).sum(1) == 6).all())
    counts = (y[:, 2:] != 0).sum(0).numpy()
    assert counts.sum() == 40_000
    assert stats.chisquare(counts).pvalue > 0.01


def test_random_k_is_scaled_by_the_odds() -> None:
    x = torch.ones(4, 50)
    codec = TopK(0.1, random=1, rescale=True)
    _, y = codec.round_trip(x, generator=seeded())
    assert codec.unbiased
    assert bool((y.sum(1) == 50).all())
    assert set(y.unique().tolist()) == {0.0, 10.0}
    mixed = TopK(0.2, random=0.5, rescale=True)
    _, z = mixed.round_trip(torch.arange(50.0).expand(3, 50) + 1, generator=seeded())
    assert bool((z[:, -5:] == torch.arange(46.0, 51.0)).all())
    drawn = z[:, :-5]
    assert bool(((drawn != 0).sum(1) == 5).all())
    assert torch.equal(drawn[drawn != 0] % 9, torch.zeros(15))


def test_settings_out_of_range() -> None:
    for text, words in (
        ("top_k:0", "between 0 and 1"),
        ("top_k:1.5", "use identity"),
        ("top_k:0.1,random=2", r"\[0, 1\]"),
        ("top_k:0.1,rescale=true", "random = 1 for random-k"),
        ("top_k:0.1,values=delta", "without state"),
        ("low_rank:0", ">= 1, got 0"),
        ("low_rank:1,matrix=rows", "did you mean 'row'"),
    ):
        with pytest.raises(ConfigError, match=words):
            make_codec(text)
    with pytest.raises(ConfigError, match="Generator"):
        TopK(0.1, random=0.5).encode(normal(4, 50))


def test_damaged_places_are_refused() -> None:
    x = normal(64, 500)
    for codec in (TopK(0.01), TopK(0.2)):
        encoded = codec.encode(x)
        places = torch.full_like(encoded.payload[1], 255)
        with pytest.raises(WireError, match="of 500 in each group"):
            codec.decode(Encoded((encoded.payload[0], places)), x.shape, x.dtype)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_matrix_of_that_rank_is_exact(rank: int) -> None:
    x = normal(30, rank) @ normal(rank, 40, seed=2)
    encoded, y = LowRank(rank).round_trip(x)
    assert torch.allclose(x, y, atol=1e-5 * float(x.abs().max()))
    assert encoded.num_bytes == 4 * rank * (30 + 40) + 2


def test_repeated_calls_reach_the_best_rank() -> None:
    """Eckart and Young: the best rank-2 error is the norm of the other singular values."""
    x = normal(40, 30)
    _, s, _ = torch.linalg.svd(x.double())
    best = float(s[2:].square().sum().sqrt())
    codec = LowRank(2)
    errors = [float((x - codec.round_trip(x, key="w")[1]).norm()) for _ in range(200)]
    assert errors[0] > 1.02 * best
    assert abs(errors[-1] / best - 1) < 1e-3
    other = float((x - codec.round_trip(x, key="v")[1]).norm())
    assert abs(other - errors[0]) < 1e-3


def test_low_rank_of_zeros_recovers() -> None:
    codec = LowRank(1)
    codec.encode(torch.zeros(8, 9), key="w")
    x = torch.outer(torch.arange(1.0, 9.0), torch.arange(1.0, 10.0))
    _, y = codec.round_trip(x, key="w")
    assert torch.allclose(x, y, rtol=1e-4)


def test_low_rank_at_any_magnitude() -> None:
    x = torch.outer(normal(20), normal(30, seed=2))
    for scale in (1e-36, 1.0, 1e36):
        _, y = LowRank(1).round_trip(x * scale)
        error = (x * scale).double() - y.double()
        assert float(error.norm()) < 1e-5 * scale * float(x.norm())


def test_vectors_pass_through_low_rank() -> None:
    x = normal(1000)
    assert LowRank(2).encode(x).payload[0].data_ptr() == x.data_ptr()


def test_non_finite_is_refused() -> None:
    x = normal(20, 50)
    x[1, 1] = math.nan
    for codec in (TopK(0.1), LowRank(1)):
        with pytest.raises(NonFiniteError, match="1 of 1000"):
            codec.encode(x)
