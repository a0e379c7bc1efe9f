"""A slope test: has the loss stopped falling, as far as its noise lets us tell?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from freewheel.monitors.base import criteria
from freewheel.monitors.loss_criterion import LossCriterion
from freewheel.monitors.losses import LossPoints, Smoothing


@dataclass(frozen=True, slots=True)
class Line:
    """A least-squares line and the confidence interval of its slope.

    Args:
        slope: per unit of x.
        margin: half the width of the interval.
        mean: of y.
        span: last x minus first x.
    """

    slope: float
    margin: float
    mean: float
    span: float

    def relative(self, slope: float) -> float:
        """Return the change over the span at this slope, as a part of the mean's size."""
        if abs(slope) * self.span <= 1e-12 * abs(self.mean):
            return 0.0  # rounding in the sums of a constant, which is no trend
        return slope * self.span / abs(self.mean) if self.mean else math.copysign(math.inf, slope)


def fit_line(x: list[int], y: list[float], confidence: float) -> Line:
    """Fit y = a + b x by least squares; the interval of b is Student's, n - 2 degrees of freedom.

    Args:
        x: at least 3 different numbers.
        y: as many numbers.
        confidence: of the two-sided interval, in (0, 1).

    Example:
        >>> from freewheel.monitors.slope import fit_line
        >>> line = fit_line([0, 1, 2], [1.0, 3.0, 5.0], confidence=0.95)
        >>> round(line.slope, 9), round(line.margin, 9)
        (2.0, 0.0)
    """
    # in scipy.special rather than scipy.stats, which takes a second to import
    from scipy.special import stdtrit

    times, values = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    centred = times - times.mean()
    mean, square = float(values.mean()), float(centred @ centred)
    slope = float(centred @ (values - mean)) / square
    left = values - mean - slope * centred
    freedom = len(times) - 2
    error = math.sqrt(float(left @ left) / freedom / square)
    margin = float(stdtrit(freedom, 0.5 + confidence / 2.0)) * error
    return Line(slope, margin, mean, float(times[-1] - times[0]))


@criteria.register("slope")
class Slope(LossCriterion):
    r"""Switch when the confidence interval of the loss's slope says that the fall has ended.

    With b the least-squares slope over the window, m the half width of its interval, and both
    taken as change over the window relative to the mean loss:

    =============== ==================== =========================================================
    rule            statistic            fires when the statistic is at most ``tolerance``
    =============== ==================== =========================================================
    significance    max(0, \|b\| - m)      no larger change is certain: the trend is below the noise
    equivalence     \|b\| + m              a larger change is ruled out: the loss is certainly flat
    =============== ==================== =========================================================

    With ``significance`` and a tolerance of 0 there is nothing to tune to the scale of the loss:
    it fires when a test at ``confidence`` cannot tell the slope from zero. A constant loss, also
    one of zero, fires; a loss that certainly rises does not.

    Args:
        window: points fitted, >= 3.
        confidence: of the interval, in (0, 1).
        rule: ``"significance"`` or ``"equivalence"``.
        tolerance: largest statistic that fires, >= 0; above 0 for ``equivalence``.
        loss: name of the evidence.
        per: ``"step"`` or ``"epoch"``: what a point stands for.
        every: losses per point where ``per = "step"``.
        smoothing: ``"none"`` or ``"ema"``; the latter correlates points and narrows the interval.
        decay: of the latter.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> from freewheel.monitors.slope import Slope
        >>> rule = Slope(window=4)
        >>> [rule.observe(step, {"loss": loss}).verdict for step, loss in
        ...  enumerate([4.0, 3.0, 2.0, 1.0, 2.0, 1.0])][3:]
        ['stay', 'switch', 'switch']

    References:
        Lang, Xiao, Zhang, "Using statistics to automate stochastic optimization", 2019 (tests of
        stationarity in place of tuned schedules).
    """

    name = "slope"

    def __init__(
        self,
        window: int = 20,
        confidence: float = 0.95,
        rule: Literal["significance", "equivalence"] = "significance",
        tolerance: float = 0.0,
        loss: str = "loss",
        per: Literal["step", "epoch"] = "step",
        every: int = 1,
        smoothing: Smoothing = "none",
        decay: float = 0.9,
    ) -> None:
        if window < 3:
            raise ValueError(f"window must be >= 3 losses, got {window}")
        if not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence must lie in (0, 1), got {confidence}")
        if rule not in ("significance", "equivalence"):
            raise ValueError(f"rule must be 'significance' or 'equivalence', got {rule!r}")
        if not tolerance >= 0.0 or (rule == "equivalence" and tolerance == 0.0):
            raise ValueError(f"tolerance must be >= 0, and > 0 for equivalence, got {tolerance}")
        self.confidence, self.rule = confidence, rule
        super().__init__(LossPoints(loss, per, every, smoothing, decay, window), tolerance)

    def _judge(self, clocks: list[int], losses: list[float]) -> tuple[float, dict[str, Any]]:
        line = fit_line(clocks, losses, self.confidence)
        low, high = (
            line.relative(line.slope - line.margin),
            line.relative(line.slope + line.margin),
        )
        if self.rule == "equivalence":
            statistic = max(abs(low), abs(high))
        else:
            statistic = max(0.0, low, -high)
        return statistic, {"slope": line.slope, "low": low, "high": high}
