"""Spread across runs and epochs: ratios of standard deviations, with intervals and a test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from freewheel.errors import DataError


@dataclass(frozen=True)
class Ratio:
    """A ratio and its interval.

    Args:
        value: the ratio.
        low: lower end of the interval.
        high: upper end of the interval.
    """

    value: float
    low: float
    high: float


def sd_ratio(
    baseline: ArrayLike,
    values: ArrayLike,
    *,
    paired: bool = False,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Ratio:
    """Return sd(baseline) / sd(values) with a percentile bootstrap interval.

    Above 1 means that ``values`` spread less. The variance ratio is its square.

    Args:
        baseline: one number per run, at least 2.
        values: one number per run, at least 2.
        paired: run i of both shares its seed, so runs are resampled together.
        confidence: of the interval.
        resamples: of the bootstrap.
        seed: of the bootstrap.

    Raises:
        DataError: fewer than 2 runs, a number that is not finite, or paired arms of unlike length.

    Example:
        >>> from freewheel.sharding.metrics import sd_ratio
        >>> sd_ratio([0, 2, 4, 6], [0, 1, 2, 3]).value
        2.0

    References:
        Efron, Tibshirani, "An Introduction to the Bootstrap" (1993).
    """
    first, second = _runs(baseline), _runs(values)
    if paired and len(first) != len(second):
        raise DataError(f"paired runs must be as many: got {len(first)} and {len(second)}")
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(first), (resamples, len(first)))
    others = picks if paired else rng.integers(0, len(second), (resamples, len(second)))
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = first[picks].std(axis=1, ddof=1) / second[others].std(axis=1, ddof=1)
        value = float(first.std(ddof=1) / second.std(ddof=1))
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn):
        return Ratio(value, np.nan, np.nan)
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(drawn, [tail, 1.0 - tail], method="nearest")
    return Ratio(value, float(low), float(high))


def brown_forsythe(*groups: ArrayLike) -> tuple[float, float]:
    """Return statistic and p-value of the test that all groups have the same spread.

    An analysis of variance of |x - median of its group|, which does not need normal values.

    Args:
        groups: two or more, each one number per run.

    Raises:
        DataError: fewer than two groups, or a group of fewer than 2 finite numbers.

    Example:
        >>> from freewheel.sharding.metrics import brown_forsythe
        >>> statistic, p = brown_forsythe([1, 2, 3, 4, 5], [11, 12, 13, 14, 15])
        >>> statistic, p
        (0.0, 1.0)

    References:
        Brown, Forsythe, "Robust tests for the equality of variances" (1974).
    """
    from scipy.stats import levene

    if len(groups) < 2:
        raise DataError(f"the Brown-Forsythe test compares two groups or more, got {len(groups)}")
    statistic, p_value = levene(*map(_runs, groups), center="median")
    return float(statistic), float(p_value)


def epoch_spread(curves: ArrayLike, last: float = 0.2) -> NDArray[np.float64]:
    """Return, for each run, the standard deviation of a metric over its last epochs.

    Args:
        curves: one row per run, one column per epoch, shape (R, E).
        last: share of the epochs that is looked at; two epochs at least.

    Raises:
        DataError: fewer than two epochs.

    Example:
        >>> from freewheel.sharding.metrics import epoch_spread
        >>> epoch_spread([[9.0, 1.0, 3.0], [9.0, 5.0, 5.0]], last=0.5).round(3).tolist()
        [1.414, 0.0]
    """
    table = np.atleast_2d(np.asarray(curves, dtype=np.float64))
    if table.shape[1] < 2:
        raise DataError(f"spread across epochs needs two epochs at least, got {table.shape[1]}")
    count = max(2, round(last * table.shape[1]))
    spread: NDArray[np.float64] = table[:, -count:].std(axis=1, ddof=1)
    return spread


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Return p-values adjusted for having looked at all of them (Holm's step-down method).

    Args:
        p_values: shape (M,).

    Example:
        >>> from freewheel.sharding.metrics import holm
        >>> holm([0.01, 0.04, 0.03]).round(3).tolist()
        [0.03, 0.06, 0.06]

    References:
        Holm, "A simple sequentially rejective multiple test procedure" (1979).
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    scaled = values[order] * np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted


def _runs(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64).ravel()
    if len(array) < 2:
        raise DataError(f"spread needs at least 2 runs, got {len(array)}")
    if not np.isfinite(array).all():
        raise DataError(
            "a run's value is not finite; leave out runs that diverged and say how many they were"
        )
    return array
