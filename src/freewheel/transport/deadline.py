"""A deadline that follows what was observed, so that a slow network needs no setting of its own."""

from __future__ import annotations

import statistics
from collections import deque

from freewheel.errors import ConfigError


class AdaptiveDeadline:
    """How long to wait for the next arrival: the median of recent ones plus k times their spread.

    ``clip(median + k * MAD, floor, ceiling)``, where MAD is the median absolute deviation from the
    median: both ignore a few stragglers, as a mean and a standard deviation would not. Until
    ``min_observed`` arrivals it is the ceiling. Observe also the time waited in vain when a
    deadline passes: so it grows with a network that became slower.

    Args:
        k: how many deviations beyond the median are still in order.
        floor_s: never less than this.
        ceiling_s: never more than this.
        window: how many recent arrivals count.
        min_observed: how many are needed to judge by.

    Raises:
        ConfigError: a setting out of its range.

    Example:
        >>> from freewheel.transport.deadline import AdaptiveDeadline
        >>> deadline = AdaptiveDeadline(k=4, floor_s=0.1, min_observed=3)
        >>> for duration_s in (1.0, 1.2, 1.1, 9.0):
        ...     deadline.observe(duration_s)
        >>> print(deadline)  # median 1.15, deviations 0.05 0.05 0.15 7.85, their median 0.1
        1.55 s = median 1.15 s + 4 x MAD 0.1 s, of 4 arrivals, within [0.1, 60] s

    References:
        Hampel, The influence curve and its role in robust estimation, 1974.
    """

    def __init__(
        self,
        k: float = 6.0,
        floor_s: float = 0.05,
        ceiling_s: float = 60.0,
        window: int = 64,
        min_observed: int = 5,
    ) -> None:
        if not (k >= 0 and 0 < floor_s <= ceiling_s and 1 <= min_observed <= window):
            raise ConfigError(
                f"a deadline needs k >= 0, 0 < floor_s <= ceiling_s and 1 <= min_observed <= "
                f"window; got k {k}, floor_s {floor_s}, ceiling_s {ceiling_s}, "
                f"min_observed {min_observed}, window {window}"
            )
        self.k, self.floor_s, self.ceiling_s = k, floor_s, ceiling_s
        self.min_observed = min_observed
        self._observed: deque[float] = deque(maxlen=window)

    def observe(self, duration_s: float) -> None:
        """Take note of how long an arrival took, or of how long one was waited for in vain."""
        if not duration_s >= 0:
            raise ConfigError(f"a duration must be >= 0 s, got {duration_s}")
        self._observed.append(duration_s)

    @property
    def value_s(self) -> float:
        """The deadline, in seconds from the start of the wait."""
        if len(self._observed) < self.min_observed:
            return self.ceiling_s
        median, mad = self._median_and_mad()
        return min(max(median + self.k * mad, self.floor_s), self.ceiling_s)

    def _median_and_mad(self) -> tuple[float, float]:
        median = statistics.median(self._observed)
        return median, statistics.median(abs(seen - median) for seen in self._observed)

    def __str__(self) -> str:
        """Return the value and how it came about, for a log or a progress line."""
        seen, bounds = len(self._observed), f"within [{self.floor_s:.3g}, {self.ceiling_s:.3g}] s"
        if seen < self.min_observed:
            return f"{self.value_s:.3g} s, the ceiling, until {self.min_observed} arrivals ({seen})"
        median, mad = self._median_and_mad()
        return (
            f"{self.value_s:.3g} s = median {median:.3g} s + {self.k:.3g} x MAD {mad:.3g} s, "
            f"of {seen} arrivals, {bounds}"
        )
