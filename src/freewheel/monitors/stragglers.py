"""Criteria on how uneven the workers are: leave all-reduce while somebody is slow, and return."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from freewheel.monitors.base import Evidence, Verdict, Word, criteria, fields_of, next_clock, number


def slowness(durations_s: Sequence[float]) -> float:
    """Return how many times longer the slowest worker's step took than the median one's.

    Args:
        durations_s: of one step of each worker, in seconds; of two, the faster one is the median.

    Example:
        >>> from freewheel.monitors.stragglers import slowness
        >>> slowness([1.0, 1.0, 1.0, 4.0])
        4.0
    """
    if not durations_s:
        raise ValueError("at least one worker's duration is needed, got none")
    middle = sorted(durations_s)[(len(durations_s) - 1) // 2]
    return max(durations_s) / middle if middle > 0 else 1.0


class _Unevenness:
    """Compares the median slowness of the last rounds with a factor.

    Args:
        factor: above 1.
        window: rounds looked at, >= 1.

    Raises:
        ValueError: a setting is out of range.
    """

    name: str
    needs = ("slowness",)
    slow: bool

    def __init__(self, factor: float, window: int) -> None:
        if not factor > 1.0:
            raise ValueError(
                f"factor must be > 1, got {factor}; 1.5 means half as long again as the median"
            )
        if window < 1:
            raise ValueError(f"window must be >= 1 rounds, got {window}")
        self.factor, self.window = factor, window
        self.reset()

    def reset(self) -> None:
        """Forget every round."""
        self._clock: int | None = None
        self._last: deque[float] = deque(maxlen=self.window)

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a step and judge; see ``Monitor.observe``."""
        self._clock = next_clock(self.name, clock, self._clock)
        value = number(evidence, "slowness")
        if value is not None:
            self._last.append(value)
        if len(self._last) < self.window:
            return Verdict(self.name, "unsure", None, self.factor)
        # the median, so that one slow step among the last is no straggler
        statistic = median(self._last)
        fires = statistic >= self.factor if self.slow else statistic < self.factor
        word: Word = "switch" if fires else "stay"
        return Verdict(self.name, word, statistic, self.factor)

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        return {"clock": self._clock, "last": list(self._last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        self._clock, last = fields_of(self.name, state, "clock", "last")
        self._last = deque((float(value) for value in last), maxlen=self.window)


@criteria.register("straggler")
class Straggler(_Unevenness):
    """Switch while somebody is slow: the slowest takes ``factor`` times as long as the median.

    Evidence: ``slowness``, see the function of that name.

    Args:
        factor: above 1.
        window: the median is taken over so many rounds, >= 1.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> from freewheel.monitors.stragglers import Straggler
        >>> rule = Straggler(window=3)
        >>> [rule.observe(step, {"slowness": ratio}).verdict
        ...  for step, ratio in enumerate([1.0, 4.0, 1.0, 4.0, 4.0])]
        ['unsure', 'unsure', 'stay', 'switch', 'switch']
    """

    name = "straggler"
    slow = True

    def __init__(self, factor: float = 1.5, window: int = 5) -> None:
        super().__init__(factor, window)


@criteria.register("no_straggler")
class NoStraggler(_Unevenness):
    """Switch when all are about equally fast: what brings a run back to all-reduce.

    Keep ``factor`` below that of ``straggler``, or runs go back and forth.

    Args:
        factor: above 1; fires below it.
        window: the median is taken over so many rounds, >= 1.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> from freewheel.monitors.stragglers import NoStraggler
        >>> NoStraggler(window=1).observe(1, {"slowness": 1.1}).verdict
        'switch'
    """

    name = "no_straggler"
    slow = False

    def __init__(self, factor: float = 1.3, window: int = 10) -> None:
        super().__init__(factor, window)
