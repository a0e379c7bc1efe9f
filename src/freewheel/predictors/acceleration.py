"""Velocity and acceleration, from the changes over two windows that follow each other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from freewheel.predictors.base import Damping, predictors
from freewheel.predictors.window import WindowPredictor


@predictors.register("acceleration")
class Acceleration(WindowPredictor):
    r"""Predicts by velocity and acceleration.

    With x_0, x_1, x_2 the states 2w, w and 0 observations ago,

    .. math::
        v = \frac{x_2 - x_1}{t_2 - t_1} \quad v' = \frac{x_1 - x_0}{t_1 - t_0} \quad
        a = \frac{v - v'}{t_2 - t_1} \quad
        \hat x(t_2 + h) = x_2 + S(h) v + \tfrac12 S(h)^2 a

    This is the published form; its velocity is that of the middle of the last window. For the
    parabola through three states use ``regression`` with ``degree = 2, window = 3``.

    Args:
        window: w, observations per velocity, >= 1.
        gamma: damping per step; see ``Damping`` for S(h).
        cap: longest horizon that is extrapolated, in steps.

    Example:
        >>> import torch
        >>> from freewheel.predictors.acceleration import Acceleration
        >>> predictor = Acceleration()
        >>> for clock, value in enumerate([0.0, 1.0, 3.0]):
        ...     predictor.observe(clock, torch.tensor([value]))
        >>> predictor.predict(2)
        tensor([9.])

    References:
        Cormode, Garofalakis, "Approximate continuous querying over distributed streams", 2008.
    """

    needed = 3

    def __init__(self, window: int = 1, gamma: float = 1.0, cap: int | None = None) -> None:
        if window < 1:
            raise ValueError(f"window must be >= 1 observation per velocity, got {window}")
        self.reach = Damping(gamma, cap)
        super().__init__(2 * window + 1)

    def _weights(self, horizon: int) -> Sequence[float]:
        newest, middle = self.num_observed - 1, (self.num_observed - 1) // 2
        times, steps = self._times(), self.reach(horizon)
        late, early = -times[middle], times[middle] - times[0]
        # Each velocity as weights of (x_i - x_newest); the newest state itself has none.
        velocity, before = np.zeros(newest), np.zeros(newest)
        velocity[middle] = -1.0 / late
        before[0], before[middle] = -1.0 / early, 1.0 / early
        bend = (velocity - before) / late
        weights: list[float] = (steps * velocity + 0.5 * steps**2 * bend).tolist()
        return weights
