"""Estimates with 95% intervals, paired by seed: what a figure of a results file is computed with.

Each statistic takes the values of one arm, or of two arms paired by seed, and returns the estimate
and its interval. Means have Student t intervals; medians, ratios and spreads have percentile
bootstrap intervals over 10,000 resamples of the seeds, with a fixed random state, so that a results
file can be recomputed to the last digit.

References: Efron, Tibshirani, "An Introduction to the Bootstrap" (1993), chapters 12 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

NUM_RESAMPLES = 10_000
CONFIDENCE = 0.95

Values = NDArray[np.float64]
Interval = tuple[float, float] | None
Reduction = Callable[[Values], Values]


def t_interval(values: Values) -> Interval:
    """Return the Student t interval of the mean; None for fewer than two values."""
    if len(values) < 2:
        return None
    from scipy import stats  # only here: importing it takes longer than most tiny benchmarks

    half = stats.t.ppf(0.5 + CONFIDENCE / 2, len(values) - 1) * values.std(ddof=1)
    half /= np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def bootstrap_interval(columns: Sequence[Values], estimate: Callable[..., Values]) -> Interval:
    """Return the percentile bootstrap interval of ``estimate``, seeds being resampled together.

    Args:
        columns: one array per arm, each of shape (seeds,), paired by position.
        estimate: takes as many arrays of shape (resamples, seeds), returns shape (resamples,).
    """
    num = len(columns[0])
    if num < 2:
        return None
    picks = np.random.default_rng(0).integers(0, num, size=(NUM_RESAMPLES, num))
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = estimate(*(column[picks] for column in columns))
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn):
        return None
    low, high = np.quantile(drawn, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return float(low), float(high)


def _median(values: Values) -> Values:
    return np.asarray(np.median(values, axis=-1))


def _mean(values: Values) -> Values:
    return np.asarray(values.mean(axis=-1))


def _sd(values: Values) -> Values:
    return np.asarray(values.std(axis=-1, ddof=1))


def _of_one(reduction: Reduction) -> Callable[[Values], tuple[float, Interval]]:
    def statistic(values: Values) -> tuple[float, Interval]:
        return float(reduction(values)), bootstrap_interval([values], reduction)

    return statistic


def _of_two(
    reduction: Reduction, combine: Callable[[Values, Values], Values]
) -> Callable[[Values, Values], tuple[float, Interval]]:
    def estimate(values: Values, against: Values) -> Values:
        return combine(reduction(values), reduction(against))

    def statistic(values: Values, against: Values) -> tuple[float, Interval]:
        with np.errstate(divide="ignore", invalid="ignore"):
            reached = float(estimate(values, against))
        return reached, bootstrap_interval([values, against], estimate)

    return statistic


def _ratio(value: Values, against: Values) -> Values:
    return value / against


def _relative_difference(value: Values, against: Values) -> Values:
    return np.abs(value / against - 1.0)


def _mean_of_one(values: Values) -> tuple[float, Interval]:
    return float(values.mean()), t_interval(values)


def _mean_difference(values: Values, against: Values) -> tuple[float, Interval]:
    return _mean_of_one(values - against)


def _upper_bound(values: Values, against: Values) -> tuple[float, Interval]:
    """Return the one-sided 95% bound that the mean difference stays below, by Student's t."""
    mean, interval = _mean_difference(values, against)
    if len(values) < 2:
        return float("nan"), None
    from scipy import stats  # only here, as in t_interval

    error = (values - against).std(ddof=1) / np.sqrt(len(values))
    return mean + float(stats.t.ppf(CONFIDENCE, len(values) - 1)) * float(error), interval


#: Statistics of one arm: name to function of its values.
OF_ONE: dict[str, Callable[[Values], tuple[float, Interval]]] = {
    "median": _of_one(_median),
    "mean": _mean_of_one,
    "sd": _of_one(_sd),
}

#: Statistics of two arms, paired by seed.
OF_TWO: dict[str, Callable[[Values, Values], tuple[float, Interval]]] = {
    "ratio_of_medians": _of_two(_median, _ratio),
    "ratio_of_means": _of_two(_mean, _ratio),
    "ratio_of_sds": _of_two(_sd, _ratio),
    "relative_difference": _of_two(_median, _relative_difference),
    "mean_difference": _mean_difference,
    "upper_bound_of_difference": _upper_bound,
}
