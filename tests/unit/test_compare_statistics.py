"""Means, paired differences and ratios with intervals, against SciPy and the bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from freewheel.compare.statistics import mean, paired, ratio, recovered

RNG = np.random.default_rng(3)
A = RNG.normal(0.95, 0.01, 10).tolist()
B = RNG.normal(0.93, 0.01, 10).tolist()


def test_the_mean_has_students_interval() -> None:
    found = mean(A)
    expected = stats.ttest_1samp(A, 0.0).confidence_interval(0.95)
    assert found is not None
    assert (found.value, found.low, found.high) == pytest.approx((np.mean(A), *expected))
    assert found.n == 10


def test_a_paired_difference_is_scipys_paired_interval() -> None:
    found = paired(A, B)
    expected = stats.ttest_rel(A, B).confidence_interval(0.95)
    assert found is not None
    assert (found.low, found.high) == pytest.approx(tuple(expected))


def test_pairing_takes_what_seeds_have_in_common_out_of_the_interval() -> None:
    shared = RNG.normal(0.0, 0.1, 10)
    found = paired((shared + 1.0).tolist(), shared.tolist())
    assert found is not None
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))


def test_a_seed_that_lacks_one_side_is_no_pair() -> None:
    found = paired([1.0, None, 3.0, 4.0], [0.5, 1.0, None, 3.5])
    assert found is not None
    assert (found.value, found.n) == (0.5, 2)
    assert paired([None, 1.0], [1.0, None]) is None


def test_one_seed_gives_no_interval() -> None:
    found = mean([2.0])
    assert found is not None
    assert (found.value, found.low, found.high, found.half, found.n) == (2.0, None, None, None, 1)
    assert mean([]) is None


def test_the_interval_of_a_ratio_agrees_with_the_bootstrap() -> None:
    rng = np.random.default_rng(5)
    below = rng.normal(10.0, 1.0, 400)
    above = 3.0 * below + rng.normal(0.0, 2.0, 400)
    found = ratio(above.tolist(), below.tolist())
    picks = rng.integers(0, 400, size=(4000, 400))
    drawn = above[picks].mean(1) / below[picks].mean(1)
    assert found is not None
    assert found.value == pytest.approx(above.mean() / below.mean())
    assert (found.low, found.high) == pytest.approx(
        tuple(np.quantile(drawn, [0.025, 0.975])), rel=0.003
    )


def test_the_recovered_fraction_counts_from_the_floor() -> None:
    found = recovered([0.92, 0.94], [0.95, 0.95], [0.75, 0.75])
    assert found is not None
    assert found.value == pytest.approx((0.93 - 0.75) / (0.95 - 0.75))


@pytest.mark.parametrize("floor", [0.95, 0.97])
def test_a_floor_at_vanilla_or_above_leaves_nothing_to_recover(floor: float) -> None:
    assert recovered([0.9], [0.95], [floor]) is None
