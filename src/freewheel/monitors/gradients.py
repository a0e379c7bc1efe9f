"""Criteria on how much the workers' gradients differ: noise scale and diversity."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from freewheel.monitors.base import Evidence, Verdict, Word, criteria, fields_of, next_clock, number

NEEDS = ("grad_norm_sq", "mean_grad_norm_sq", "num_workers")


def gradient_evidence(norms_sq: Sequence[float], sum_norm_sq: float) -> dict[str, float]:
    """Return the evidence of one step, from what all-reduce has at hand.

    Args:
        norms_sq: squared norm of each worker's gradient, N values.
        sum_norm_sq: squared norm of the sum of those gradients.

    Returns:
        ``grad_norm_sq``, the mean of the former; ``mean_grad_norm_sq``, the squared norm of the
        mean gradient; and ``num_workers``.

    Example:
        >>> from freewheel.monitors.gradients import gradient_evidence
        >>> gradient_evidence([1.0, 1.0], 2.0)["mean_grad_norm_sq"]  # two orthogonal gradients
        0.5
    """
    count = len(norms_sq)
    if count == 0:
        raise ValueError("at least one worker's gradient is needed, got none")
    return {
        "grad_norm_sq": sum(norms_sq) / count,
        "mean_grad_norm_sq": sum_norm_sq / count**2,
        "num_workers": float(count),
    }


class _GradientCriterion(ABC):
    """Fires when a ratio of two smoothed numbers reaches a threshold.

    Args:
        threshold: smallest ratio that fires, > 0.
        decay: weight of the past in the means, in [0, 1).
        min_steps: steps without which it does not judge, >= 1.

    Raises:
        ValueError: a setting is out of range.
    """

    name: str
    needs = NEEDS

    def __init__(self, threshold: float, decay: float, min_steps: int) -> None:
        if not threshold > 0.0:
            raise ValueError(f"threshold must be > 0, got {threshold}")
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        if min_steps < 1:
            raise ValueError(f"min_steps must be >= 1, got {min_steps}")
        self.threshold, self.decay, self.min_steps = threshold, decay, min_steps
        self.reset()

    def reset(self) -> None:
        """Forget every gradient."""
        self._clock: int | None = None
        self._above = self._below = 0.0
        self._num_steps = 0

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a step and judge; see ``Monitor.observe``. One worker tells it nothing."""
        self._clock = next_clock(self.name, clock, self._clock)
        each, mean, workers = (number(evidence, name) for name in NEEDS)
        if each is not None and mean is not None and workers is not None and workers >= 2:
            above, below = self._parts(each, mean, workers)
            self._above = self.decay * self._above + (1.0 - self.decay) * above
            self._below = self.decay * self._below + (1.0 - self.decay) * below
            self._num_steps += 1
        detail = {"num_steps": self._num_steps}
        if self._num_steps < self.min_steps or (self._above <= 0.0 and self._below <= 0.0):
            return Verdict(self.name, "unsure", None, self.threshold, detail)
        ratio = self._above / self._below if self._below > 0.0 else math.inf
        word: Word = "switch" if ratio >= self.threshold else "stay"
        return Verdict(self.name, word, ratio, self.threshold, detail)

    @abstractmethod
    def _parts(self, each: float, mean: float, workers: float) -> tuple[float, float]:
        """Return numerator and denominator for one step."""

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        return {
            "clock": self._clock,
            "above": self._above,
            "below": self._below,
            "num_steps": self._num_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        self._clock, self._above, self._below, self._num_steps = fields_of(
            self.name, state, "clock", "above", "below", "num_steps"
        )


@criteria.register("gradient_noise")
class GradientNoise(_GradientCriterion):
    r"""Switch when the gradient is mostly noise: its noise scale reaches the global batch.

    From the workers' gradients g_i and their mean G,

    .. math::
        |G|^2 \approx \frac{N \|\bar g\|^2 - \overline{\|g_i\|^2}}{N - 1} \qquad
        S \approx \frac{N (\overline{\|g_i\|^2} - \|\bar g\|^2)}{N - 1} \qquad
        \text{statistic} = \frac{S}{N |G|^2}

    both unbiased, smoothed apart, and S per worker's batch: the statistic is the simple noise
    scale over the global batch. Where |G|^2 comes out at or below 0 it is infinite.

    Args:
        threshold: smallest statistic that fires, > 0.
        decay: of the smoothing, in [0, 1).
        min_steps: steps without which it does not judge.

    Example:
        >>> from freewheel.monitors.gradients import GradientNoise, gradient_evidence
        >>> rule = GradientNoise(min_steps=1)
        >>> rule.observe(1, gradient_evidence([1.0, 1.0], 4.0)).verdict  # the same gradient twice
        'stay'

    References:
        McCandlish, Kaplan, Amodei, "An empirical model of large-batch training", 2018.
    """

    name = "gradient_noise"

    def __init__(self, threshold: float = 1.0, decay: float = 0.95, min_steps: int = 20) -> None:
        super().__init__(threshold, decay, min_steps)

    def _parts(self, each: float, mean: float, workers: float) -> tuple[float, float]:
        signal = (workers * mean - each) / (workers - 1.0)
        noise = workers * (each - mean) / (workers - 1.0)
        return noise / workers, signal


@criteria.register("gradient_diversity")
class GradientDiversity(_GradientCriterion):
    r"""Switch when the workers' gradients point different ways.

    .. math:: \Delta = \frac{\sum_i \|g_i\|^2}{\|\sum_i g_i\|^2}

    1/N for equal gradients, 1 for orthogonal ones, more where they cancel; numerator and
    denominator are smoothed apart.

    Args:
        threshold: smallest diversity that fires, > 0.
        decay: of the smoothing, in [0, 1).
        min_steps: steps without which it does not judge.

    Example:
        >>> from freewheel.monitors.gradients import GradientDiversity, gradient_evidence
        >>> rule = GradientDiversity(min_steps=1)
        >>> rule.observe(1, gradient_evidence([1.0, 1.0], 2.0)).statistic  # orthogonal
        1.0

    References:
        Yin, Pananjady, Lam, Papailiopoulos, Ramchandran, Bartlett, "Gradient diversity: a key
        ingredient for scalable distributed learning", 2018.
    """

    name = "gradient_diversity"

    def __init__(self, threshold: float = 1.0, decay: float = 0.95, min_steps: int = 20) -> None:
        super().__init__(threshold, decay, min_steps)

    def _parts(self, each: float, mean: float, workers: float) -> tuple[float, float]:
        return each / workers, mean
