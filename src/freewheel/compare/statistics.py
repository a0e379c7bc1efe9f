"""Means, paired differences and ratios with 95% intervals over the seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """An estimate with its 95% interval.

    Args:
        value: the estimate.
        low: lower end, or None where fewer than two seeds give no interval.
        high: upper end, or None.
        n: seeds that it is made of.
    """

    value: float
    low: float | None
    high: float | None
    n: int

    @property
    def half(self) -> float | None:
        """Half the width of the interval."""
        return None if self.high is None else self.high - self.value


def mean(values: Sequence[float]) -> Estimate | None:
    """Return the mean with its Student t interval, m +- t(0.975, n - 1) s / sqrt(n).

    Args:
        values: one a seed.

    Returns:
        None without values.

    Example:
        >>> from freewheel.compare.statistics import mean
        >>> estimate = mean([1.0, 2.0, 3.0])
        >>> estimate.value, round(estimate.low, 3), round(estimate.high, 3), estimate.n
        (2.0, -0.484, 4.484, 3)
    """
    if not values:
        return None
    return _around(float(np.mean(values)), np.asarray(values, dtype=float), 1.0)


def paired(values: Sequence[float | None], against: Sequence[float | None]) -> Estimate | None:
    """Return the mean of the differences, seed by seed, with its Student t interval.

    Args:
        values: one a seed; None where a run gave none.
        against: of the same seeds in the same order.

    Returns:
        None where no seed has both.

    Example:
        >>> from freewheel.compare.statistics import paired
        >>> paired([0.5, 0.75, None], [1.0, 1.25, 1.0])
        Estimate(value=-0.5, low=-0.5, high=-0.5, n=2)
    """
    pairs = _both(values, against)
    return mean([a - b for a, b in pairs])


def ratio(values: Sequence[float | None], against: Sequence[float | None]) -> Estimate | None:
    """Return the ratio of the means over the seeds that have both, with its interval.

    r = mean(a) / mean(b); its standard error is that of the residuals a - r b over mean(b), with
    Student's t on n - 1 degrees of freedom.

    Args:
        values: one a seed; None where a run gave none.
        against: of the same seeds in the same order.

    Returns:
        None where no seed has both, or the mean of ``against`` is not above 0.

    References:
        W. G. Cochran, Sampling Techniques, 1977, chapter 6 (the ratio estimator).

    Example:
        >>> from freewheel.compare.statistics import ratio
        >>> ratio([2.0, 4.0], [1.0, 2.0])
        Estimate(value=2.0, low=2.0, high=2.0, n=2)
    """
    pairs = _both(values, against)
    if not pairs:
        return None
    above, below = (np.asarray(column, dtype=float) for column in zip(*pairs, strict=True))
    if below.mean() <= 0:
        return None
    value = float(above.mean() / below.mean())
    return _around(value, above - value * below, float(below.mean()))


def recovered(
    values: Sequence[float | None], vanilla: Sequence[float | None], floor: Sequence[float | None]
) -> Estimate | None:
    """Return how much of the way from the floor up to vanilla was made.

    mean(metric - floor) / mean(vanilla - floor), over the seeds that have all three; 1 is vanilla,
    0 the floor. More is better here: give negated values of a metric of which less is.

    Args:
        values: the arm's, one a seed.
        vanilla: vanilla's, of the same seeds.
        floor: the floor's, of the same seeds.

    Returns:
        None where no seed has all three, or vanilla does not lie above the floor: then the task
        tells nothing.

    Example:
        >>> from freewheel.compare.statistics import recovered
        >>> recovered([0.75, 0.75], [1.0, 1.0], [0.5, 0.5]).value
        0.5
    """
    above = [None if a is None or f is None else a - f for a, f in zip(values, floor, strict=True)]
    below = [None if v is None or f is None else v - f for v, f in zip(vanilla, floor, strict=True)]
    return ratio(above, below)


def _around(value: float, residuals: np.ndarray, scale: float) -> Estimate:
    n = len(residuals)
    if n < 2:
        return Estimate(value, None, None, n)
    from scipy import special  # only here: it takes long to import, scipy.stats far longer

    spread = float(residuals.std(ddof=1)) / math.sqrt(n) / scale
    half = float(special.stdtrit(n - 1, 0.5 + CONFIDENCE / 2)) * spread
    return Estimate(value, value - half, value + half, n)


def _both(
    values: Sequence[float | None], against: Sequence[float | None]
) -> list[tuple[float, float]]:
    return [(a, b) for a, b in zip(values, against, strict=True) if a is not None and b is not None]
