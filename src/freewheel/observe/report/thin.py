"""100,000 points become a few hundred: means over bins of equal count."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from freewheel.observe.report.columns import Floats, Ints

#: Points of a curve; more than a screen can show helps nobody.
MAX_POINTS = 400


def thin(x: Floats, y: Floats, weight: Floats, num_bins: int) -> tuple[Floats, Floats]:
    """Return weighted means of points over bins of equal count.

    Bin ``b`` of ``B`` holds points ``b N // B`` up to ``(b + 1) N // B`` in the order of x.

    Args:
        x: N positions, in any order.
        y: N values; none NaN.
        weight: N weights > 0.
        num_bins: at most so many; at least one point is in each.

    Returns:
        Mean x and mean y of each bin, both weighted.

    Example:
        >>> import numpy as np
        >>> from freewheel.observe.report.thin import thin
        >>> x, y = thin(np.arange(4.0), np.array([1.0, 3.0, 5.0, 7.0]), np.ones(4), 2)
        >>> x.tolist(), y.tolist()
        ([0.5, 2.5], [2.0, 6.0])
    """
    if len(x) == 0:
        return x, y
    order = np.argsort(x, kind="stable")
    x, y, weight = x[order], y[order], weight[order]
    num_bins = max(1, min(num_bins, len(x)))
    starts = np.arange(num_bins) * len(x) // num_bins
    total = np.add.reduceat(weight, starts)
    return (
        np.add.reduceat(x * weight, starts) / total,
        np.add.reduceat(y * weight, starts) / total,
    )


def by_step(step: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats, Floats]:
    """Return one point a step: the weighted mean over the processes that report it.

    Args:
        step: of N rows.
        y: N values; none NaN.
        weight: N weights > 0.

    Returns:
        Steps, ascending; means; and sums of weights.

    Example:
        >>> import numpy as np
        >>> from freewheel.observe.report.thin import by_step
        >>> steps, means, _ = by_step(np.array([2., 1., 2.]), np.array([4., 1., 6.]), np.ones(3))
        >>> steps.tolist(), means.tolist()
        ([1.0, 2.0], [1.0, 5.0])
    """
    steps, inverse = np.unique(step, return_inverse=True)
    total: Floats = np.bincount(inverse, weight, minlength=len(steps)).astype(np.float64)
    return steps, np.bincount(inverse, y * weight, minlength=len(steps)) / total, total


def spread(num_items: int, limit: int) -> Ints:
    """Return at most ``limit`` indices into ``num_items`` items, the first and last among them.

    Example:
        >>> from freewheel.observe.report.thin import spread
        >>> spread(9, 3).tolist(), spread(2, 3).tolist()
        ([0, 4, 8], [0, 1])
    """
    if num_items <= limit:
        return np.arange(num_items, dtype=np.int64)
    return np.linspace(0, num_items - 1, limit).round().astype(np.int64)


def numbers(values: Iterable[float] | Floats, digits: int = 5) -> list[float | None]:
    """Return values for JSON: rounded to significant digits, None for what is not finite.

    Example:
        >>> from freewheel.observe.report.thin import numbers
        >>> numbers([1.0, 0.123456789, float("nan"), 123456.0])
        [1, 0.12346, None, 123460]
    """
    return [_round(float(value), digits) for value in values]


def positions(values: Sequence[float] | Floats) -> list[float | None]:
    """Return positions on an axis: as ``numbers``, with digits for a long run."""
    return numbers(values, 7)


def _round(value: float, digits: int) -> float | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{digits}g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 1e15 else rounded
