"""Least-squares polynomials through the last states, one per coordinate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from freewheel.predictors.base import Damping, predictors
from freewheel.predictors.window import WindowPredictor


@predictors.register("regression")
class Regression(WindowPredictor):
    r"""Fits a polynomial in the clock to every coordinate and evaluates it ahead.

    With V the Vandermonde matrix of the window's clocks, the weights of the states are

    .. math:: c(h) = V (V^\top V)^{-1} (1, S(h), \ldots, S(h)^d)^\top

    the same for all coordinates, so that the cost is one weighted sum of the window. With fewer
    states than ``degree + 1`` the degree is lowered to what they determine.

    Args:
        window: states fitted, >= 2.
        degree: of the polynomial, >= 0 and below ``window``; 0 is the mean.
        anchored: add the fitted change to the last state, in place of taking the fitted value.
        gamma: damping per step; see ``Damping`` for S(h).
        cap: longest horizon that is extrapolated, in steps.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> import torch
        >>> from freewheel.predictors.regression import Regression
        >>> predictor = Regression(window=3, degree=2)
        >>> for clock in range(3):
        ...     predictor.observe(clock, torch.tensor([clock**2.0]))
        >>> predictor.predict(2).round(decimals=4)
        tensor([16.])
    """

    needed = 2

    def __init__(
        self,
        window: int = 8,
        degree: int = 1,
        anchored: bool = False,
        gamma: float = 1.0,
        cap: int | None = None,
    ) -> None:
        if not 0 <= degree < window:
            raise ValueError(f"degree must be >= 0 and below the window of {window}, got {degree}")
        self.degree, self.anchored, self.reach = degree, anchored, Damping(gamma, cap)
        super().__init__(window)

    def _weights(self, horizon: int) -> Sequence[float]:
        times, steps = self._times(), self.reach(horizon)
        span = -times[0]  # clocks are scaled to [-1, 0], which keeps V well conditioned
        degree = min(self.degree, self.num_observed - 1)
        pseudo_inverse = np.linalg.pinv(np.vander(times / span, degree + 1, increasing=True))
        ahead = (steps / span) ** np.arange(degree + 1)
        if self.anchored:
            ahead = ahead - 0.0 ** np.arange(degree + 1)  # minus the fit at the last clock
        weights: list[float] = (ahead @ pseudo_inverse)[:-1].tolist()
        return weights
