"""A Kalman filter of position and velocity per coordinate, with one gain for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from freewheel.predictors.base import Damping, predictors
from freewheel.predictors.level import LevelPredictor


@predictors.register("kalman")
class Kalman(LevelPredictor):
    r"""Filters position and velocity under random accelerations and noisy observations.

    Per coordinate, over a gap T between observations,

    .. math::
        F = \begin{pmatrix} 1 & T \\ 0 & 1 \end{pmatrix} \quad
        Q = \Lambda^2 \begin{pmatrix} T^4/4 & T^3/2 \\ T^3/2 & T^2 \end{pmatrix} \quad
        H = (1 \; 0) \quad R = 1 \qquad \hat x(t + h) = l + S(h) b

    The gain depends on the clocks and on the ratio of the two noises alone, so that one 2 x 2
    covariance serves all coordinates. It starts from the first two observations.

    Args:
        ratio: Lambda, standard deviation of the acceleration per step over that of the
            observation, > 0: small filters more.
        gamma: damping per step; see ``Damping`` for S(h).
        cap: longest horizon that is extrapolated, in steps.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> import torch
        >>> from freewheel.predictors.kalman import Kalman
        >>> predictor = Kalman()
        >>> for clock in range(3):
        ...     predictor.observe(clock, torch.tensor([2.0 * clock]))
        >>> predictor.predict(3)
        tensor([10.])

    References:
        Kalman, "A new approach to linear filtering and prediction problems", 1960.
        Kalata, "The tracking index", 1984.
    """

    def __init__(self, ratio: float = 0.1, gamma: float = 1.0, cap: int | None = None) -> None:
        if not ratio > 0.0:
            raise ValueError(f"ratio must be > 0, got {ratio}; small filters more")
        self.ratio, self.reach = ratio, Damping(gamma, cap)
        super().__init__()

    def reset(self) -> None:
        """Forget level, velocity and covariance."""
        super().reset()
        self._covariance = np.zeros((2, 2))

    def _start(self, state: Tensor, gap: int) -> None:
        assert self._last is not None  # the first observation was kept
        self._level.copy_(state)
        self._velocity = (state - self._last) / gap
        self._covariance = np.array([[1.0, 1.0 / gap], [1.0 / gap, 2.0 / gap**2]])

    def _gains(self, gap: int) -> tuple[float, float, float, float]:
        move = np.array([[1.0, gap], [0.0, 1.0]])
        push = np.array([gap**2 / 2.0, float(gap)])
        ahead = move @ self._covariance @ move.T + self.ratio**2 * np.outer(push, push)
        gain = ahead[:, 0] / (ahead[0, 0] + 1.0)
        kept = np.eye(2) - np.outer(gain, [1.0, 0.0])
        # Joseph's form: stays symmetric and positive over any number of steps
        self._covariance = kept @ ahead @ kept.T + np.outer(gain, gain)
        return float(gap), 1.0, float(gain[0]), float(gain[1])

    def _extrapolate(self, horizon: int) -> Tensor:
        return self._level.add(self._velocity, alpha=self.reach(horizon))

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "covariance": self._covariance.flatten().tolist()}

    def _load(self, state: Mapping[str, Any]) -> None:
        rest = dict(state)
        covariance = rest.pop("covariance", None)
        super()._load(rest)
        if covariance is not None:
            self._covariance = np.asarray(covariance, dtype=np.float64).reshape(2, 2)
