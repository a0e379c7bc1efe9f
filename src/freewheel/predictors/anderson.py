"""Regularised Anderson extrapolation: the fixed point that the last steps point to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from freewheel.predictors.base import predictors
from freewheel.predictors.window import WindowPredictor, gram_of_differences


@predictors.register("anderson")
class Anderson(WindowPredictor):
    r"""Predicts where the iteration will settle, at any horizon above 0.

    With the residuals R_i = x_{i+1} - x_i,

    .. math::
        c \propto (R^\top R / \|R^\top R\| + \lambda I)^{-1} 1, \quad \sum_i c_i = 1, \quad
        \hat x = \sum_i c_i x_{i+1}

    For x_{i+1} = A x_i + b this is the fixed point itself once the window spans the differences.

    Args:
        window: states kept, >= 3.
        regularization: lambda, > 0: larger is closer to the plain mean of the window.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> import torch
        >>> from freewheel.predictors.anderson import Anderson
        >>> predictor = Anderson(window=3, regularization=1e-12)
        >>> for clock, value in enumerate([8.0, 4.0, 2.0]):  # halves towards 0
        ...     predictor.observe(clock, torch.tensor([value]))
        >>> abs(float(predictor.predict(1))) < 1e-5
        True

    References:
        Scieur, d'Aspremont, Bach, "Regularized nonlinear acceleration", 2016.
    """

    needed = 3

    def __init__(self, window: int = 8, regularization: float = 1e-5) -> None:
        if not regularization > 0.0:
            raise ValueError(f"regularization must be > 0, got {regularization}")
        self.regularization = regularization
        super().__init__(window)

    def _weights(self, horizon: int) -> Sequence[float]:
        gram = gram_of_differences(self._states)
        if not np.isfinite(gram).all() or not gram.any():
            return [0.0] * len(gram)  # too large to square, or no move at all: the last state
        size = np.linalg.norm(gram, 2)
        solved = np.linalg.solve(
            gram / size + self.regularization * np.eye(len(gram)), np.ones(len(gram))
        )
        shares: list[float] = (solved / solved.sum()).tolist()
        return [0.0, *shares[:-1]]  # c_i belongs to x_{i+1}
