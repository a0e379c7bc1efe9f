"""Losses as a criterion sees them: which one, per how many steps, smoothed or not."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

from freewheel.monitors.base import Evidence, fields_of, is_broken, number

Smoothing = Literal["none", "ema"]


class LossPoints:
    """Turns the losses of steps into the last few points that a criterion looks at.

    A point is the mean loss of ``every`` steps, or with ``per = "epoch"`` of all steps with one
    value of the evidence ``"epoch"``; it is dated with the last clock in it. A step without the
    loss adds nothing; a loss that is NaN or infinite is counted and left out.

    Args:
        loss: name of the evidence, e.g. ``"loss"`` or ``"validation_loss"``.
        per: ``"step"`` or ``"epoch"``.
        every: losses per point where ``per = "step"``, >= 1.
        smoothing: ``"none"``, or ``"ema"``: points are exponentially weighted means.
        decay: weight of the past in the latter, in [0, 1).
        window: points kept, >= 1.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> from freewheel.monitors.losses import LossPoints
        >>> points = LossPoints(every=2, window=3)
        >>> [points.observe(clock, {"loss": float(clock)}) for clock in range(4)]
        [False, True, False, True]
        >>> points.values
        [0.5, 2.5]
    """

    def __init__(
        self,
        loss: str = "loss",
        per: Literal["step", "epoch"] = "step",
        every: int = 1,
        smoothing: Smoothing = "none",
        decay: float = 0.9,
        window: int = 6,
    ) -> None:
        if per not in ("step", "epoch"):
            raise ValueError(f"per must be 'step' or 'epoch', got {per!r}")
        if every < 1 or (every > 1 and per == "epoch"):
            raise ValueError(f"every must be >= 1, and 1 with per = 'epoch', got {every}")
        if smoothing not in ("none", "ema"):
            raise ValueError(f"smoothing must be 'none' or 'ema', got {smoothing!r}")
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        if window < 1:
            raise ValueError(f"window must be >= 1, got {window}")
        self.loss, self.per, self.every = loss, per, every
        self.decay = decay if smoothing == "ema" else 0.0
        self.window = window
        self.reset()

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the evidence that it looks at."""
        return (self.loss, "epoch") if self.per == "epoch" else (self.loss,)

    def reset(self) -> None:
        """Forget every loss."""
        self._points: deque[tuple[int, float]] = deque(maxlen=self.window)
        self._sum, self._count, self._last_in_group = 0.0, 0, 0
        self._epoch: float | None = None
        self._smooth = self._weight = 0.0
        self.num_points = self.num_non_finite = 0

    @property
    def clocks(self) -> list[int]:
        """Clocks of the points kept, oldest first."""
        return [clock for clock, _ in self._points]

    @property
    def values(self) -> list[float]:
        """Values of the points kept, oldest first."""
        return [value for _, value in self._points]

    @property
    def full(self) -> bool:
        """Whether the window is full."""
        return len(self._points) == self.window

    def observe(self, clock: int, evidence: Evidence) -> bool:
        """Take note of a step; return whether it completed a point."""
        self.num_non_finite += is_broken(evidence, self.loss)
        completed = False
        if self.per == "epoch":
            epoch = number(evidence, "epoch")
            if epoch is not None and epoch != self._epoch:
                completed = self._complete()
                self._epoch = epoch
        value = number(evidence, self.loss)
        if value is None:
            return completed
        self._sum, self._count, self._last_in_group = self._sum + value, self._count + 1, clock
        if self.per == "step" and self._count == self.every:
            completed = self._complete()
        return completed

    def _complete(self) -> bool:
        if self._count == 0:
            return False
        value = self._sum / self._count
        self._smooth = self.decay * self._smooth + (1.0 - self.decay) * value
        self._weight = self.decay * self._weight + (1.0 - self.decay)
        self._points.append((self._last_in_group, self._smooth / self._weight))
        self._sum, self._count = 0.0, 0
        self.num_points += 1
        return True

    def detail(self) -> dict[str, Any]:
        """Return what a verdict should say about the losses behind it."""
        return {
            "loss": self._points[-1][1] if self._points else None,
            "num_points": self.num_points,
            "num_non_finite": self.num_non_finite,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        return {
            "points": [list(point) for point in self._points],
            "sum": self._sum,
            "count": self._count,
            "last_in_group": self._last_in_group,
            "epoch": self._epoch,
            "smooth": self._smooth,
            "weight": self._weight,
            "num_points": self.num_points,
            "num_non_finite": self.num_non_finite,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        points, *rest = fields_of("a loss", state, "points", *list(self.state_dict())[1:])
        self.reset()
        self._points.extend((int(clock), float(value)) for clock, value in points)
        (
            self._sum,
            self._count,
            self._last_in_group,
            self._epoch,
            self._smooth,
            self._weight,
            self.num_points,
            self.num_non_finite,
        ) = rest
