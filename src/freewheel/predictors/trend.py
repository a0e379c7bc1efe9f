"""Holt's double exponential smoothing, damped or not."""

from __future__ import annotations

from torch import Tensor

from freewheel.predictors.base import Damping, predictors
from freewheel.predictors.level import LevelPredictor


@predictors.register("trend")
class Trend(LevelPredictor):
    r"""Smooths a level and a trend per coordinate (Holt), with a trend that fades (damped).

    For observations one step apart,

    .. math::
        l' = \alpha x + (1 - \alpha)(l + \phi b) \qquad
        b' = \beta (l' - l) + (1 - \beta) \phi b \qquad \hat x(t + h) = l + S(h) b

    starting from l = x_0, b = x_1 - x_0, with S the geometric sum of phi = ``gamma``. Further
    apart, phi b becomes S(gap) b in the level, gamma^gap b in the trend, and l' - l is divided by
    the gap.

    Args:
        alpha: weight of the observation in the level, in (0, 1].
        beta: weight of the last move of the level in the trend, in [0, 1].
        gamma: damping of the trend per step, in (0, 1]; 1 is Holt's undamped method.
        cap: longest horizon that is extrapolated, in steps.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> import torch
        >>> from freewheel.predictors.trend import Trend
        >>> predictor = Trend()
        >>> for clock in range(3):
        ...     predictor.observe(clock, torch.tensor([2.0 * clock]))
        >>> predictor.predict(3)
        tensor([10.])

    References:
        Holt, "Forecasting seasonals and trends by exponentially weighted moving averages", 1957.
        Gardner, McKenzie, "Forecasting trends in time series", 1985.
    """

    def __init__(
        self,
        alpha: float = 0.5,
        beta: float = 0.1,
        gamma: float = 1.0,
        cap: int | None = None,
    ) -> None:
        if not 0.0 < alpha <= 1.0:
            raise ValueError(f"alpha must lie in (0, 1], got {alpha}")
        if not 0.0 <= beta <= 1.0:
            raise ValueError(f"beta must lie in [0, 1], got {beta}")
        self.alpha, self.beta = alpha, beta
        self.reach, self._own_reach = Damping(gamma, cap), Damping(gamma)
        super().__init__()

    def _start(self, state: Tensor, gap: int) -> None:
        assert self._last is not None  # the first observation was kept
        self._velocity = (state - self._last) / gap
        self._correct(state, *self._gains(gap))

    def _gains(self, gap: int) -> tuple[float, float, float, float]:
        # In terms of e = x - (l + S b): l' - l = S b + alpha e, which gives the two factors of b'.
        reach, fade = self._own_reach(gap), self.reach.gamma**gap
        keep = self.beta * reach / gap + (1.0 - self.beta) * fade
        return reach, keep, self.alpha, self.alpha * self.beta / gap

    def _extrapolate(self, horizon: int) -> Tensor:
        return self._level.add(self._velocity, alpha=self.reach(horizon))
