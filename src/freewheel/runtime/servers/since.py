"""What a worker has gathered since its last push."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from freewheel.protocols.replicas import Evidence


@dataclass(slots=True)
class Since:
    """Gradients, and means of what was measured, of the steps that the next push stands for.

    Args:
        based_on: versions of the parameters that the first of these steps began with, by server.
    """

    based_on: list[int]
    steps: int = 0
    samples: int = 0
    _seconds: float = 0.0
    _sums: dict[str, float] = field(default_factory=dict)
    _gradients: list[tuple[list[Tensor], int]] = field(default_factory=list)
    _absent: frozenset[int] | None = None

    @property
    def is_finite(self) -> bool:
        """Whether no step had values that are NaN or infinite."""
        return not self._sums.get("non_finite")

    def add_gradient(self, vectors: list[Tensor], absent: frozenset[int], num_samples: int) -> None:
        """Take in the gradient of a step, one vector a server.

        Args:
            vectors: written to later.
            absent: places of parameters that had no gradient.
            num_samples: of the step.
        """
        self._absent = absent if self._absent is None else self._absent & absent
        self._gradients.append((vectors, num_samples))

    def add_step(self, num_samples: int, evidence: Evidence, seconds: float) -> None:
        """Take in what was measured of a step: means over its samples; ``non_finite`` a count."""
        self.steps += 1
        self.samples += num_samples
        self._seconds += seconds
        for name, value in evidence.items():
            # Counts of bad values add up; everything else is a mean over samples.
            weight = 1 if name == "non_finite" else num_samples
            self._sums[name] = self._sums.get(name, 0.0) + value * weight

    def mean_gradient(self) -> list[Tensor]:
        """Return the mean over all samples, one vector a server, in the memory of the first."""
        (total, weight), *others = self._gradients
        if others:
            for vector in total:
                vector.mul_(weight / self.samples)
            for vectors, samples in others:
                torch._foreach_add_(total, vectors, alpha=samples / self.samples)
        return total

    def facts(self) -> dict[str, Any]:
        """Return what a push says of these steps, as plain values."""
        samples = max(1, self.samples)
        evidence = {
            name: value if name == "non_finite" else value / samples
            for name, value in self._sums.items()
        }
        facts: dict[str, Any] = {"e": {**evidence, "duration_s": self._seconds}}
        if self._absent:
            facts["absent"] = sorted(self._absent)
        return facts
