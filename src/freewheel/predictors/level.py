"""A base for predictors that smooth a level and a velocity per coordinate."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from freewheel.predictors.base import BasePredictor, chunks, take


class LevelPredictor(BasePredictor):
    r"""Keeps a smoothed level l and velocity b per coordinate, corrected by what is observed.

    .. math::
        e = x - (l + r b) \qquad l \leftarrow l + r b + k_0 e \qquad
        b \leftarrow s b + k_1 e \qquad \hat x(t + h) = l + S(h) b

    A subclass gives r, s and the gains k_0, k_1, the same for all coordinates.
    """

    needed = 2

    @property
    def copies(self) -> float:
        """The level, the velocity, and the last state."""
        return 3.0

    @property
    def num_observed(self) -> int:
        """States seen."""
        return self._num_observed

    @property
    def last(self) -> Tensor | None:
        """The newest state."""
        return self._last

    @property
    def last_clock(self) -> int | None:
        """The newest clock."""
        return self._clock

    def reset(self) -> None:
        """Forget level and velocity."""
        self._num_observed = 0
        self._clock: int | None = None
        self._last: Tensor | None = None
        self._level = torch.empty(0)
        self._velocity = torch.empty(0)

    def _absorb(self, clock: int, state: Tensor) -> None:
        if self._last is None or self._clock is None:
            self._last, self._level = state.clone(), state.clone()
            self._velocity = torch.zeros_like(state)
        else:
            gap = clock - self._clock
            if self._num_observed == 1:
                self._start(state, gap)
            else:
                self._correct(state, *self._gains(gap))
            self._last.copy_(state)
        self._clock = clock
        self._num_observed += 1

    def _correct(self, state: Tensor, reach: float, keep: float, k_0: float, k_1: float) -> None:
        """Move level and velocity by one observation."""
        for part in chunks(len(state)):
            level, velocity = self._level[part], self._velocity[part]
            level.add_(velocity, alpha=reach)
            error = torch.sub(state[part], level)
            level.add_(error, alpha=k_0)
            if keep != 1.0:
                velocity.mul_(keep)
            velocity.add_(error, alpha=k_1)

    @abstractmethod
    def _start(self, state: Tensor, gap: int) -> None:
        """Set level and velocity from the second observation, ``gap`` clocks after the first."""

    @abstractmethod
    def _gains(self, gap: int) -> tuple[float, float, float, float]:
        """Return r, s, k_0, k_1 for an observation ``gap`` clocks after the one before."""

    def _state(self) -> dict[str, Any]:
        return {
            "clock": -1 if self._clock is None else self._clock,
            "num_observed": self._num_observed,
            "last": torch.empty(0) if self._last is None else self._last.clone(),
            "level": self._level.clone(),
            "velocity": self._velocity.clone(),
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        clock, num_observed, last, level, velocity = take(
            state, "clock", "num_observed", "last", "level", "velocity"
        )
        self.reset()
        if num_observed > 0:
            self._num_observed, self._clock = int(num_observed), int(clock)
            self._last, self._level, self._velocity = last.clone(), level.clone(), velocity.clone()
