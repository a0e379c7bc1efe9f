"""Stability: which parameters only jitter, by their effective perturbation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from freewheel.monitors.base import Evidence, Verdict, Word, fields_of, monitors, next_clock
from freewheel.predictors.base import is_finite, working_dtype


@monitors.register("stability")
class Stability:
    r"""Trusts standing still once most parameters have stopped going anywhere.

    With D the change of a parameter between two observations,

    .. math::
        E \leftarrow \alpha E + (1 - \alpha) D \qquad
        E_a \leftarrow \alpha E_a + (1 - \alpha) |D| \qquad P = |E| / E_a \in [0, 1]

    P is 1 for a steady drift and near 0 for jitter round a point; a parameter that has not moved
    at all has P = 0. The statistic is the part of the parameters with P below the bound; at or
    above ``share`` the verdict is ``trust``. With ``tighten`` the bound is halved each time.

    Evidence: ``state``, the flat parameters [P]. One that has a NaN or infinite value is counted,
    left out, and answered with ``doubt``. Holds 3 copies of the parameters.

    Args:
        bound: P below which a parameter is stable, in (0, 1].
        share: part of the parameters that must be stable, in (0, 1].
        decay: alpha, in [0, 1).
        min_steps: changes without which it does not judge, >= 1.
        tighten: halve the bound whenever it is trusted.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> import torch
        >>> from freewheel.monitors.stability import Stability
        >>> monitor = Stability(min_steps=4, decay=0.5, bound=0.4)
        >>> for clock in range(6):
        ...     verdict = monitor.observe(clock, {"state": torch.tensor([(-1.0) ** clock])})
        >>> verdict.verdict
        'trust'

    References:
        Chen, Xu, Wang, Li, Li, Chen, Zhang, "Communication-efficient federated learning with
        adaptive parameter freezing", 2021.
    """

    name = "stability"
    needs = ("state",)
    copies = 3.0

    def __init__(
        self,
        bound: float = 0.05,
        share: float = 0.8,
        decay: float = 0.99,
        min_steps: int = 20,
        tighten: bool = False,
    ) -> None:
        for setting, value in (("bound", bound), ("share", share)):
            if not 0.0 < value <= 1.0:
                raise ValueError(f"{setting} must lie in (0, 1], got {value}")
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        if min_steps < 1:
            raise ValueError(f"min_steps must be >= 1, got {min_steps}")
        self.first_bound, self.share, self.decay = bound, share, decay
        self.min_steps, self.tighten = min_steps, tighten
        self.reset()

    def reset(self) -> None:
        """Forget every change and start from the first bound."""
        self.bound = self.first_bound
        self._clock: int | None = None
        self._num_steps = self.num_non_finite = 0
        self._last: Tensor | None = None
        self._drift = self._travel = torch.empty(0)

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a step and judge; see ``Monitor.observe``."""
        self._clock = next_clock(self.name, clock, self._clock)
        state = evidence.get("state")
        if state is None:
            return self._verdict()
        if not is_finite(state):
            self.num_non_finite += 1
            return Verdict(
                self.name, "doubt", None, self.share, {"num_non_finite": self.num_non_finite}
            )
        state = state.detach().to(working_dtype(state.dtype))
        if self._last is None:
            self._last = state.clone()
            self._drift, self._travel = torch.zeros_like(state), torch.zeros_like(state)
            return self._verdict()
        if state.shape != self._last.shape:
            raise ValueError(
                f"the state has {state.numel()} values, those before had {self._last.numel()}; "
                "call reset() when the parameters change shape"
            )
        change = state - self._last
        self._drift.lerp_(change, 1.0 - self.decay)
        self._travel.lerp_(change.abs_(), 1.0 - self.decay)
        self._last.copy_(state)
        self._num_steps += 1
        return self._verdict(judge=True)

    def _verdict(self, judge: bool = False) -> Verdict:
        detail: dict[str, Any] = {"bound": self.bound, "num_non_finite": self.num_non_finite}
        if not judge or self._num_steps < self.min_steps or self._drift.numel() == 0:
            return Verdict(self.name, "unsure", None, self.share, detail)
        perturbation = self.effective_perturbation()
        stable = float((perturbation < self.bound).double().mean())
        detail["mean_perturbation"] = float(perturbation.double().mean())
        word: Word = "trust" if stable >= self.share else "doubt"
        if word == "trust" and self.tighten:
            self.bound /= 2.0
        return Verdict(self.name, word, stable, self.share, detail)

    def effective_perturbation(self) -> Tensor:
        """Return P for every parameter: [P], in [0, 1]."""
        # Both means carry the same bias towards 0, which cancels.
        tiny = torch.finfo(self._travel.dtype).tiny
        return (self._drift.abs() / self._travel.clamp(min=tiny)).clamp_(max=1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values and tensors for a checkpoint."""
        return {
            "clock": self._clock,
            "bound": self.bound,
            "num_steps": self._num_steps,
            "num_non_finite": self.num_non_finite,
            "seen": self._last is not None,
            "last": torch.empty(0) if self._last is None else self._last.clone(),
            "drift": self._drift.clone(),
            "travel": self._travel.clone(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        clock, bound, num_steps, num_non_finite, seen, last, drift, travel = fields_of(
            self.name,
            state,
            "clock",
            "bound",
            "num_steps",
            "num_non_finite",
            "seen",
            "last",
            "drift",
            "travel",
        )
        self._clock, self.bound = clock, float(bound)
        self._num_steps, self.num_non_finite = int(num_steps), int(num_non_finite)
        self._last = last.clone() if seen else None
        self._drift, self._travel = drift.clone(), travel.clone()
