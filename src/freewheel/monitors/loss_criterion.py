"""What criteria over a loss share: the clock, the points, and the verdict in between points."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from freewheel.monitors.base import Evidence, Verdict, fields_of, next_clock
from freewheel.monitors.losses import LossPoints


class LossCriterion(ABC):
    """A criterion that judges the last few points of a loss, whenever one is completed.

    Args:
        points: how losses become points; its window must be full before a judgement.
        threshold: what the statistic is held against; at or below it the verdict is ``switch``.
    """

    name: str

    def __init__(self, points: LossPoints, threshold: float) -> None:
        self.points, self.threshold = points, threshold
        self.reset()

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the evidence that it looks at."""
        return self.points.needs

    def reset(self) -> None:
        """Forget every loss."""
        self.points.reset()
        self._clock: int | None = None

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a step and judge; see ``Monitor.observe``."""
        self._clock = next_clock(self.name, clock, self._clock)
        self.points.observe(clock, evidence)
        if not self.points.full:
            return Verdict(self.name, "unsure", None, self.threshold, self.points.detail())
        statistic, detail = self._judge(self.points.clocks, self.points.values)
        return Verdict(
            self.name,
            "switch" if statistic <= self.threshold else "stay",
            statistic,
            self.threshold,
            {**self.points.detail(), **detail},
        )

    @abstractmethod
    def _judge(self, clocks: list[int], losses: list[float]) -> tuple[float, dict[str, Any]]:
        """Return the statistic of a full window, and further plain values."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        return {"clock": self._clock, "points": self.points.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        clock, points = fields_of(self.name, state, "clock", "points")
        self.points.load_state_dict(points)
        self._clock = clock
