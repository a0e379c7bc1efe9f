"""Deviation: stay silent while a prediction is close to what really happened."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from freewheel.monitors.base import Evidence, Verdict, Word, fields_of, monitors, next_clock, number


def deviation_evidence(predicted: Tensor, actual: Tensor, synced: Tensor) -> dict[str, float]:
    """Return the norms that ``Deviation`` compares.

    Args:
        predicted: state [P] that both ends predict.
        actual: state [P] of its owner.
        synced: state [P] that both ends last agreed on.

    Example:
        >>> import torch
        >>> from freewheel.monitors.deviation import deviation_evidence
        >>> deviation_evidence(torch.ones(4), torch.full((4,), 2.0), torch.zeros(4))
        {'error_norm': 2.0, 'move_norm': 4.0, 'state_norm': 4.0}
    """
    return {
        "error_norm": float(torch.linalg.vector_norm(predicted - actual)),
        "move_norm": float(torch.linalg.vector_norm(actual - synced)),
        "state_norm": float(torch.linalg.vector_norm(actual)),
    }


@monitors.register("deviation")
class Deviation:
    r"""Trusts a prediction while its error is small beside what it predicts.

    .. math:: \|\hat x - x\| \le \theta \|x - x_{synced}\|
        \quad \text{or} \quad \|\hat x - x\| \le \theta / \sqrt{k} \, \|x\|

    The first compares with the move since the last synchronisation: with theta = 1 it is in doubt
    just when predicting is no better than standing still. The second is that of prediction-based
    monitoring over k sites. Where the right-hand side is 0, only an error of 0 is trusted.

    Evidence: ``error_norm`` with ``move_norm`` or ``state_norm``; see ``deviation_evidence``.
    A norm that is NaN or infinite is in doubt; one that is missing makes it unsure.

    Args:
        theta: largest error trusted, relative, > 0.
        relative_to: ``"move"`` or ``"state"``.
        sites: k, >= 1, for ``"state"``.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> from freewheel.monitors.deviation import Deviation
        >>> monitor = Deviation(theta=0.5)
        >>> [monitor.observe(clock, {"error_norm": error, "move_norm": 2.0}).verdict
        ...  for clock, error in enumerate([0.9, 1.1])]
        ['trust', 'doubt']

    References:
        Cormode, Garofalakis, "Approximate continuous querying over distributed streams", 2008.
        Giatrakos, Deligiannakis, Garofalakis, Sharfman, Schuster, "Distributed geometric query
        monitoring using prediction models", 2014.
    """

    name = "deviation"

    def __init__(
        self,
        theta: float = 0.5,
        relative_to: Literal["move", "state"] = "move",
        sites: int = 1,
    ) -> None:
        if not theta > 0.0:
            raise ValueError(f"theta must be > 0, got {theta}")
        if relative_to not in ("move", "state"):
            raise ValueError(f"relative_to must be 'move' or 'state', got {relative_to!r}")
        if sites < 1 or (sites > 1 and relative_to == "move"):
            raise ValueError(f"sites must be >= 1, and 1 with relative_to = 'move', got {sites}")
        self.relative_to = relative_to
        self.threshold = theta / math.sqrt(sites)
        self.needs = ("error_norm", f"{relative_to}_norm")
        self.reset()

    def reset(self) -> None:
        """Forget the clock."""
        self._clock: int | None = None

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a step and judge; see ``Monitor.observe``."""
        self._clock = next_clock(self.name, clock, self._clock)
        if any(evidence.get(name) is None for name in self.needs):
            return Verdict(self.name, "unsure", None, self.threshold)
        error, size = (number(evidence, name) for name in self.needs)
        if error is None or size is None:
            return Verdict(self.name, "doubt", None, self.threshold, {"non_finite": True})
        ratio = error / size if size > 0.0 else (math.inf if error > 0.0 else 0.0)
        word: Word = "trust" if ratio <= self.threshold else "doubt"
        return Verdict(self.name, word, ratio, self.threshold, {"error_norm": error})

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        return {"clock": self._clock}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        (self._clock,) = fields_of(self.name, state, "clock")
