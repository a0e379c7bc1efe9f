"""A base for predictors that combine the last few states linearly.

Static, velocity, acceleration, regression, DMD, Anderson extrapolation and averaging all predict
a weighted sum of the states in a window, with weights that depend on clocks and inner products
alone. They differ in the weights, and share the ring of states and the sum.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from freewheel.errors import CheckpointError
from freewheel.predictors.base import BasePredictor, chunks, take

Floats = npt.NDArray[np.float64]


class WindowPredictor(BasePredictor):
    r"""Predicts the last state plus a weighted sum of how the earlier ones differ from it.

    .. math:: \hat x(t + h) = x_n + \sum_{i<n} c_i(h) (x_i - x_n)

    Weighted differences rather than states, so that a constant history is predicted exactly.

    Args:
        window: states kept, >= 1.

    Raises:
        ValueError: the window is shorter than the predictor needs.
    """

    def __init__(self, window: int) -> None:
        if window < self.needed:
            raise ValueError(f"window must be >= {self.needed} states, got {window}")
        self.window = window
        super().__init__()

    @property
    def copies(self) -> float:
        """One per state of the window."""
        return float(self.window)

    @property
    def num_observed(self) -> int:
        """States in the window."""
        return len(self._clocks)

    @property
    def last(self) -> Tensor | None:
        """The newest state."""
        return self._states[-1] if self._states else None

    @property
    def last_clock(self) -> int | None:
        """The newest clock."""
        return self._clocks[-1] if self._clocks else None

    def reset(self) -> None:
        """Empty the window."""
        self._clocks: list[int] = []
        self._states: list[Tensor] = []

    def _absorb(self, clock: int, state: Tensor) -> None:
        if len(self._states) == self.window:
            oldest = self._states.pop(0)  # its memory is used again: no allocation per step
            self._clocks.pop(0)
            self._states.append(
                oldest.copy_(state) if oldest.dtype == state.dtype else state.clone()
            )
        else:
            self._states.append(state.clone())
        self._clocks.append(clock)

    def _extrapolate(self, horizon: int) -> Tensor:
        weights = self._weights(horizon)
        predicted = self._states[-1].clone()
        for part in chunks(len(predicted)):
            newest, sum_here = self._states[-1][part], predicted[part]
            difference = torch.empty_like(newest)
            for state, weight in zip(self._states[:-1], weights, strict=True):
                if weight != 0.0:
                    torch.sub(state[part], newest, out=difference)
                    sum_here.add_(difference, alpha=weight)
        return predicted

    @abstractmethod
    def _weights(self, horizon: int) -> Sequence[float]:
        """Return c_i(h) for all states but the newest, oldest first."""

    def _times(self) -> Floats:
        """Return the clocks relative to the newest, oldest first: [n], all but the last < 0."""
        return np.asarray(self._clocks, dtype=np.float64) - self._clocks[-1]

    def _state(self) -> dict[str, Any]:
        return {
            "clocks": list(self._clocks),
            "states": torch.stack(self._states) if self._states else torch.empty(0, 0),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        clocks, states = take(state, "clocks", "states")
        if len(clocks) > self.window or len(states) != len(clocks):
            raise CheckpointError(
                f"a window of {len(clocks)} clocks and {len(states)} states does not fit one of "
                f"{self.window}; load it with the settings that it was saved with"
            )
        self._clocks = [int(clock) for clock in clocks]
        self._states = [row.clone() for row in states]


def gram_of_differences(states: Sequence[Tensor]) -> Floats:
    """Return the inner products of the differences of successive states.

    Args:
        states: n + 1 flat tensors [P], oldest first.

    Returns:
        An array [n, n] in float64: entry (i, j) is <x_{i+1} - x_i, x_{j+1} - x_j>, to a relative
        error of about 1e-6 for states in float32.

    Example:
        >>> import torch
        >>> from freewheel.predictors.window import gram_of_differences
        >>> steps = [torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]), torch.tensor([1.0, 2.0])]
        >>> gram_of_differences(steps).tolist()
        [[1.0, 0.0], [0.0, 4.0]]
    """
    total = torch.zeros((len(states) - 1,) * 2, dtype=torch.float64, device=states[0].device)
    for part in chunks(len(states[0])):
        rows = states[0].new_empty(len(states) - 1, part.stop - part.start)
        for row, before, after in zip(rows, states, states[1:], strict=False):
            torch.sub(after[part], before[part], out=row)
        total += rows @ rows.T
    gram: Floats = total.cpu().numpy()
    return gram


def weights_of_differences(coefficients: Floats) -> Floats:
    """Turn coefficients of n differences into weights of the n states before the newest.

    ``sum_i a_i (x_{i+1} - x_i)`` is the same as ``sum_i (a_{i-1} - a_i) (x_i - x_n)``.

    Example:
        >>> import numpy as np
        >>> from freewheel.predictors.window import weights_of_differences
        >>> weights_of_differences(np.array([0.0, 3.0])).tolist()
        [0.0, -3.0]
    """
    return np.concatenate(([0.0], coefficients[:-1])) - coefficients
