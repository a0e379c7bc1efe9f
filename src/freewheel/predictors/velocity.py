"""Velocity: the change per step so far, carried on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from freewheel.predictors.base import BasePredictor, Damping, Predictor, chunks, predictors, take
from freewheel.predictors.window import WindowPredictor

Estimate = Literal["last", "window", "means", "ewma"]


@predictors.register("velocity")
def velocity(
    estimate: Estimate = "window",
    window: int = 8,
    decay: float = 0.9,
    shrink: bool = False,
    gamma: float = 1.0,
    cap: int | None = None,
) -> Predictor:
    r"""Make a predictor that goes on at one velocity.

    .. math:: \hat x(t + h) = x(t) + S(h) \, s \odot v

    ======== ================================================================== ============
    estimate v                                                                  copies
    ======== ================================================================== ============
    last     (x_n - x_{n-1}) / (t_n - t_{n-1})                                  2
    window   (x_n - x_0) / (t_n - t_0) over the window                          window
    means    (mean of the newer half - mean of the older half) / their distance window
    ewma     exponentially weighted mean of the last differences                2, 3 shrunk
    ======== ================================================================== ============

    With ``shrink``, each coordinate's velocity is multiplied by the signal-to-noise factor

    .. math:: s = \frac{v^2}{v^2 + \mathrm{var}(d) / n}

    where d are its n differences per step: a coordinate that only jitters stays where it is.

    Args:
        estimate: how v is taken from the history.
        window: states kept for ``window`` and ``means``, >= 2 (3 with ``shrink``).
        decay: weight of the past for ``ewma``, in [0, 1).
        shrink: shrink by signal-to-noise; for ``window`` and ``ewma``.
        gamma: damping per step; see ``Damping`` for S(h).
        cap: longest horizon that is extrapolated, in steps.

    Returns:
        A ``WindowVelocity`` or an ``EwmaVelocity``.

    Raises:
        ValueError: a setting is out of range or has no meaning for the estimate.

    Example:
        >>> import torch
        >>> from freewheel.predictors.velocity import velocity
        >>> predictor = velocity(window=3)
        >>> for clock, value in enumerate([0.0, 3.0, 4.0]):
        ...     predictor.observe(clock, torch.tensor([value]))
        >>> predictor.predict(2)
        tensor([8.])

    References:
        Cormode, Garofalakis, "Approximate continuous querying over distributed streams", 2008.
    """
    known = ("last", "window", "means", "ewma")
    if estimate not in known:
        raise ValueError(f"estimate must be one of {', '.join(known)}, got {estimate!r}")
    if shrink and estimate not in ("window", "ewma"):
        raise ValueError(
            f"shrink needs several differences, estimate {estimate!r} has none; "
            "use estimate = 'window' or 'ewma'"
        )
    reach = Damping(gamma, cap)
    if estimate == "ewma":
        return EwmaVelocity(decay, shrink, reach)
    return WindowVelocity(2 if estimate == "last" else window, estimate == "means", shrink, reach)


class WindowVelocity(WindowPredictor):
    """Velocity over a window of states; made by ``velocity``.

    Args:
        window: states kept, >= 2 (3 with ``shrink``).
        means: compare the means of the two halves, in place of the two ends.
        shrink: shrink by signal-to-noise.
        reach: S(h).

    Example:
        >>> from freewheel.predictors.base import Damping
        >>> from freewheel.predictors.velocity import WindowVelocity
        >>> WindowVelocity(4, means=False, shrink=False, reach=Damping()).copies
        4.0
    """

    needed = 2

    def __init__(self, window: int, means: bool, shrink: bool, reach: Damping) -> None:
        if shrink and window < 3:
            raise ValueError(f"shrink needs two differences: window must be >= 3, got {window}")
        self.means, self.shrink, self.reach = means, shrink, reach
        super().__init__(window)

    def _weights(self, horizon: int) -> Sequence[float]:
        times, steps = self._times(), self.reach(horizon)
        velocity = np.zeros(len(times))
        older = len(times) // 2 if self.means else 1
        newer = len(times) - older if self.means else 1
        velocity[:older] -= 1.0 / older
        velocity[-newer:] += 1.0 / newer
        weights: list[float] = (steps / float(velocity @ times) * velocity)[:-1].tolist()
        return weights

    def _extrapolate(self, horizon: int) -> Tensor:
        predicted = super()._extrapolate(horizon)
        if not self.shrink or self.num_observed < 3:
            return predicted
        gaps = np.diff(self._clocks)
        for part in chunks(len(predicted)):
            states = [state[part] for state in self._states]
            # var(d) from the squared deviations of each difference from the velocity of the window
            mean = (states[-1] - states[0]) / float(gaps.sum())
            spread = torch.zeros_like(mean)
            for before, after, gap in zip(states, states[1:], gaps, strict=False):
                deviation = torch.sub(after, before).div_(float(gap)).sub_(mean)
                spread.addcmul_(deviation, deviation)
            noise = spread.div_(len(gaps) - 1).div_(len(gaps))
            moved = predicted[part].sub_(states[-1])
            moved.mul_(signal_share(mean, noise)).add_(states[-1])
        return predicted


class EwmaVelocity(BasePredictor):
    r"""Velocity as an exponentially weighted mean of differences; made by ``velocity``.

    .. math:: v_n \propto \sum_i decay^{n-i} \frac{x_i - x_{i-1}}{t_i - t_{i-1}}

    with weights that sum to 1 from the first difference on.

    Args:
        decay: weight of the past, in [0, 1); 0 is the last difference.
        shrink: shrink by signal-to-noise.
        reach: S(h).

    Raises:
        ValueError: ``decay`` is out of range.

    Example:
        >>> from freewheel.predictors.base import Damping
        >>> from freewheel.predictors.velocity import EwmaVelocity
        >>> EwmaVelocity(0.9, shrink=True, reach=Damping()).copies
        3.0
    """

    needed = 2

    def __init__(self, decay: float, shrink: bool, reach: Damping) -> None:
        if not 0.0 <= decay < 1.0:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        self.decay, self.shrink, self.reach = decay, shrink, reach
        super().__init__()

    @property
    def copies(self) -> float:
        """The last state, the velocity, and with ``shrink`` its mean square."""
        return 3.0 if self.shrink else 2.0

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
        """Forget every difference."""
        self._num_observed = 0
        self._clock: int | None = None
        self._last: Tensor | None = None
        self._mean: Tensor | None = None
        self._square: Tensor | None = None
        # Sums of the weights given so far and of their squares: they correct the bias towards 0.
        self._weight = self._weight_square = 0.0

    def _absorb(self, clock: int, state: Tensor) -> None:
        if self._last is None or self._clock is None:
            self._last = state.clone()
            self._mean = torch.zeros_like(state)
            self._square = torch.zeros_like(state) if self.shrink else None
        else:
            share, gap = 1.0 - self.decay, clock - self._clock
            assert self._mean is not None  # set with _last
            for part in chunks(len(state)):
                step = torch.sub(state[part], self._last[part])
                if gap != 1:
                    step.div_(float(gap))
                self._mean[part].lerp_(step, share)
                if self._square is not None:
                    self._square[part].lerp_(step.square_(), share)
            self._weight = self.decay * self._weight + share
            self._weight_square = self.decay**2 * self._weight_square + share**2
            self._last.copy_(state)
        self._clock = clock
        self._num_observed += 1

    def _extrapolate(self, horizon: int) -> Tensor:
        assert self._last is not None  # needed = 2
        assert self._mean is not None
        velocity = self._mean / self._weight
        if self._square is not None:
            concentration = self._weight_square / self._weight**2  # 1 / effective number
            if concentration < 1.0 - 1e-12:
                variance = self._square.div(self._weight).addcmul_(velocity, velocity, value=-1.0)
                noise = variance.clamp_(min=0.0).mul_(concentration / (1.0 - concentration))
                velocity *= signal_share(velocity, noise)
        return velocity.mul_(self.reach(horizon)).add_(self._last)

    def _state(self) -> dict[str, Any]:
        empty = torch.empty(0)
        return {
            "clock": -1 if self._clock is None else self._clock,
            "num_observed": self._num_observed,
            "last": empty if self._last is None else self._last.clone(),
            "mean": empty if self._mean is None else self._mean.clone(),
            "square": empty if self._square is None else self._square.clone(),
            "weight": self._weight,
            "weight_square": self._weight_square,
        }

    def _load(self, state: Mapping[str, Any]) -> None:
        clock, num_observed, last, mean, square, weight, weight_square = take(
            state, "clock", "num_observed", "last", "mean", "square", "weight", "weight_square"
        )
        self.reset()
        if num_observed > 0:
            self._num_observed, self._clock = int(num_observed), int(clock)
            self._last, self._mean = last.clone(), mean.clone()
            self._square = square.clone() if self.shrink else None
            self._weight, self._weight_square = float(weight), float(weight_square)


def signal_share(mean: Tensor, noise: Tensor) -> Tensor:
    """Return mean^2 / (mean^2 + noise), and 0 where both are 0.

    Args:
        mean: estimated means, [P].
        noise: variances of those estimates, [P], >= 0.

    Example:
        >>> import torch
        >>> from freewheel.predictors.velocity import signal_share
        >>> signal_share(torch.tensor([2.0, 0.0]), torch.tensor([4.0, 0.0])).tolist()
        [0.5, 0.0]
    """
    signal = mean.square()
    tiny = math.sqrt(torch.finfo(signal.dtype).tiny)
    return signal / (signal + noise).clamp_(min=tiny)
