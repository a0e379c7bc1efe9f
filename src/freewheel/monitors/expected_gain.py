"""Expected gain: switch when the time won by not waiting outweighs the cost of staleness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from freewheel.monitors.base import Evidence, Verdict, criteria, fields_of, next_clock, number
from freewheel.monitors.losses import LossPoints, Smoothing
from freewheel.monitors.slope import fit_line


def speedup(waiting_s: Sequence[float], duration_s: float) -> float:
    r"""Return how many times faster workers would be that did not wait for each other.

    .. math:: \frac{1}{N} \sum_i \frac{d}{d - w_i}

    Args:
        waiting_s: seconds of one step that each of N workers waited.
        duration_s: seconds of that step, the same for all.

    Raises:
        ValueError: there is no worker, or one waited for less than 0 s or as long as the step.

    Example:
        >>> from freewheel.monitors.expected_gain import speedup
        >>> speedup([3.0, 0.0], 4.0)  # one computes for 1 s, the other for 4
        2.5
    """
    if not waiting_s or not all(0.0 <= wait < duration_s for wait in waiting_s):
        raise ValueError(
            f"each wait must be >= 0 s and below the step's {duration_s} s, got {list(waiting_s)}"
        )
    return sum(duration_s / (duration_s - wait) for wait in waiting_s) / len(waiting_s)


@criteria.register("expected_gain")
class ExpectedGain:
    r"""Switch when progress per second without waiting is expected to exceed that with waiting.

    .. math::
        \text{statistic} = \frac{u}{1 + c \, \tau \, g} \ge 1 + \text{margin} \qquad
        g = \max(0, -b / \bar L) \qquad \tau = N - 1

    u is the measured speed-up (smoothed), tau the staleness that N workers without barriers have
    on average, and g the part of the loss that falls per step: while it falls fast, a gradient that
    is tau steps old is of less use. A loss that stands still, is constant or zero, has g = 0, and
    then waiting alone decides; so does one that rises.

    Evidence: the loss; ``speedup``, see the function of that name (each worker may report its own
    d / (d - w), since the mean over workers is what counts); ``num_workers``.

    Args:
        margin: gain asked for, >= 0.
        sensitivity: c, >= 0: cost of staleness, in units of the relative fall within it.
        window: points that the fall is fitted to, >= 3.
        decay: of the smoothing of the speed-up, in [0, 1).
        loss: name of the evidence.
        per: ``"step"`` or ``"epoch"``: what a point stands for.
        every: losses per point where ``per = "step"``.
        smoothing: ``"none"`` or ``"ema"``, of the loss.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> from freewheel.monitors.expected_gain import ExpectedGain
        >>> rule = ExpectedGain(window=3)
        >>> [rule.observe(step, {"loss": 1.0, "speedup": 2.0, "num_workers": 4}).verdict
        ...  for step in range(3)]
        ['unsure', 'unsure', 'switch']
    """

    name = "expected_gain"

    def __init__(
        self,
        margin: float = 0.1,
        sensitivity: float = 10.0,
        window: int = 20,
        decay: float = 0.9,
        loss: str = "loss",
        per: Literal["step", "epoch"] = "step",
        every: int = 1,
        smoothing: Smoothing = "none",
    ) -> None:
        if not margin >= 0.0 or not sensitivity >= 0.0:
            raise ValueError(f"margin and sensitivity must be >= 0, got {margin} and {sensitivity}")
        if window < 3:
            raise ValueError(f"window must be >= 3 losses, got {window}")
        self.margin, self.sensitivity, self.decay = margin, sensitivity, decay
        self.points = LossPoints(loss, per, every, smoothing, decay, window)
        self.reset()

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the evidence that it looks at."""
        return (*self.points.needs, "speedup", "num_workers")

    def reset(self) -> None:
        """Forget every loss and wait."""
        self.points.reset()
        self._clock: int | None = None
        self._speedup = self._weight = 0.0
        self._num_workers: float | None = None

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a step and judge; see ``Monitor.observe``."""
        self._clock = next_clock(self.name, clock, self._clock)
        self.points.observe(clock, evidence)
        faster, workers = number(evidence, "speedup"), number(evidence, "num_workers")
        if faster is not None:
            self._speedup = self.decay * self._speedup + (1.0 - self.decay) * faster
            self._weight = self.decay * self._weight + (1.0 - self.decay)
        self._num_workers = self._num_workers if workers is None else workers
        threshold = 1.0 + self.margin
        if not self.points.full or self._weight == 0.0 or self._num_workers is None:
            return Verdict(self.name, "unsure", None, threshold, self.points.detail())
        line = fit_line(self.points.clocks, self.points.values, confidence=0.95)
        fall = max(0.0, -line.relative(line.slope)) / line.span
        staleness = max(0.0, self._num_workers - 1.0)
        measured = self._speedup / self._weight
        statistic = measured / (1.0 + self.sensitivity * staleness * fall)
        return Verdict(
            self.name,
            "switch" if statistic >= threshold else "stay",
            statistic,
            threshold,
            {**self.points.detail(), "speedup": measured, "fall_per_step": fall},
        )

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        return {
            "clock": self._clock,
            "points": self.points.state_dict(),
            "speedup": self._speedup,
            "weight": self._weight,
            "num_workers": self._num_workers,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        clock, points, self._speedup, self._weight, self._num_workers = fields_of(
            self.name, state, "clock", "points", "speedup", "weight", "num_workers"
        )
        self.points.load_state_dict(points)
        self._clock = clock
