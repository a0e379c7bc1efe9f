"""Dynamic mode decomposition: the linear dynamics that the last steps show, run ahead."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from freewheel.predictors.base import Damping, predictors
from freewheel.predictors.window import (
    Floats,
    WindowPredictor,
    gram_of_differences,
    weights_of_differences,
)


@predictors.register("koopman")
class Koopman(WindowPredictor):
    r"""Fits a low-rank linear map to successive differences and applies it ``horizon`` times.

    Differences d_i = x_{i+1} - x_i of an affine iteration x' = A x + b obey d' = A d. With
    D = [d_0 ... d_{m-2}] = U S V^T cut to rank r and D' = [d_1 ... d_{m-1}],

    .. math::
        \tilde A = U^\top D' V S^{-1}, \qquad
        \hat x(t + h) = x(t) + U \sum_{j=1}^{h} (\gamma \tilde A)^j \, U^\top d_{m-1}

    computed from the m x m matrix of inner products alone: U is never formed. Only the newest
    states that lie equally far apart are used; a horizon between two multiples of that distance
    is interpolated.

    Args:
        window: states kept, >= 3.
        rank: largest r, >= 1.
        tolerance: directions whose singular value is below this part of the largest are left out.
        stable: scale the map so that its spectral radius is at most 1. Noise makes eigenvalues
            that run away.
        gamma: damping per distance between states, in (0, 1].
        cap: longest horizon that is extrapolated, in steps.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> import torch
        >>> from freewheel.predictors.koopman import Koopman
        >>> predictor = Koopman(window=4)
        >>> for clock in range(4):  # 1, 0.5, 0.25, 0.125
        ...     predictor.observe(clock, torch.tensor([0.5**clock]))
        >>> predictor.predict(2)
        tensor([0.0312])

    References:
        Dogra, Redman, "Optimizing neural networks via Koopman operator theory", 2020.
        Schmid, "Dynamic mode decomposition of numerical and experimental data", 2010.
    """

    needed = 3

    def __init__(
        self,
        window: int = 10,
        rank: int = 4,
        tolerance: float = 3e-3,
        stable: bool = True,
        gamma: float = 1.0,
        cap: int | None = None,
    ) -> None:
        if rank < 1:
            raise ValueError(f"rank must be >= 1, got {rank}")
        if not 0.0 < tolerance < 1.0:
            raise ValueError(f"tolerance must lie in (0, 1), got {tolerance}")
        self.rank, self.tolerance, self.stable = rank, tolerance, stable
        self.reach = Damping(gamma, cap)
        super().__init__(window)

    def _weights(self, horizon: int) -> Sequence[float]:
        start = self._first_equally_spaced()
        coefficients = np.zeros(self.num_observed - 1)
        if self.num_observed - start >= self.needed:
            gram = gram_of_differences(self._states[start:])
            step = self._clocks[-1] - self._clocks[-2]
            steps = horizon if self.reach.cap is None else min(horizon, self.reach.cap)
            coefficients[start:-1] = self._run_ahead(gram, steps / step)
        weights: list[float] = weights_of_differences(coefficients).tolist()
        return weights

    def _first_equally_spaced(self) -> int:
        """Return where the newest run of states with one distance between clocks begins."""
        gaps = np.diff(self._clocks)
        other = np.flatnonzero(gaps != gaps[-1])
        return int(other[-1]) + 1 if len(other) else 0

    def _run_ahead(self, gram: Floats, times: float) -> Floats:
        """Return the coefficients of d_0 ... d_{m-2} in the move over ``times`` applications."""
        if not np.isfinite(gram).all():
            return np.zeros(len(gram) - 1)  # too large to square: no dynamics can be told
        squares, vectors = np.linalg.eigh(gram[:-1, :-1])
        kept = np.argsort(squares)[::-1][: self.rank]
        kept = kept[squares[kept] > self.tolerance**2 * max(squares[-1], 0.0)]
        if len(kept) == 0:
            return np.zeros(len(gram) - 1)
        basis = vectors[:, kept] / np.sqrt(squares[kept])  # V S^-1, so that U = D (V S^-1)
        dynamics = basis.T @ gram[:-1, 1:] @ basis
        if self.stable:
            dynamics = dynamics / max(1.0, float(np.abs(np.linalg.eigvals(dynamics)).max()))
        newest = basis.T @ gram[:-1, -1]
        whole, part = int(times), times - int(times)
        moved: Floats = _power_sum(self.reach.gamma * dynamics, whole) @ newest
        if part > 0.0:
            onward = _power_sum(self.reach.gamma * dynamics, whole + 1) @ newest
            moved = (1.0 - part) * moved + part * onward
        coefficients: Floats = basis @ moved
        return coefficients


def _power_sum(matrix: Floats, times: int) -> Floats:
    """Return M + M^2 + ... + M^times, from one power of a block matrix: [r, r]."""
    rank = len(matrix)
    block = np.block([[matrix, matrix], [np.zeros_like(matrix), np.eye(rank)]])
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by predict()
        total: Floats = np.linalg.matrix_power(block, times)[:rank, rank:]
    return total
