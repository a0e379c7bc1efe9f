"""The two simplest predictors: nothing changes; everything grows with the clock."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from freewheel.predictors.base import Damping, predictors
from freewheel.predictors.window import WindowPredictor


@predictors.register("static")
class Static(WindowPredictor):
    r"""Predicts the last state: the control that every other predictor has to beat.

    .. math:: \hat x(t + h) = x(t)

    Example:
        >>> import torch
        >>> from freewheel.predictors.static import Static
        >>> predictor = Static()
        >>> predictor.observe(4, torch.tensor([1.0]))
        >>> predictor.predict(100)
        tensor([1.])

    References:
        Cormode, Garofalakis, "Approximate continuous querying over distributed streams", 2008.
    """

    def __init__(self) -> None:
        super().__init__(window=1)

    def _weights(self, horizon: int) -> Sequence[float]:
        return ()


@predictors.register("linear_growth")
class LinearGrowth(WindowPredictor):
    r"""Predicts that the state grows in proportion to the clock.

    .. math:: \hat x(t + h) = \frac{t + S(h)}{t} x(t)

    At clock 0 or below there is no proportion: the last state is predicted.

    Args:
        gamma: damping per step; see ``Damping`` for S(h).
        cap: longest horizon that is extrapolated, in steps.

    Example:
        >>> import torch
        >>> from freewheel.predictors.static import LinearGrowth
        >>> predictor = LinearGrowth()
        >>> predictor.observe(4, torch.tensor([1.0]))
        >>> predictor.predict(2)
        tensor([1.5000])

    References:
        Cormode, Garofalakis, "Approximate continuous querying over distributed streams", 2008.
    """

    def __init__(self, gamma: float = 1.0, cap: int | None = None) -> None:
        self.reach = Damping(gamma, cap)
        super().__init__(window=1)

    def _extrapolate(self, horizon: int) -> Tensor:
        clock, state = self._clocks[-1], self._states[-1]
        return state.clone() if clock <= 0 else state * (1.0 + self.reach(horizon) / clock)

    def _weights(self, horizon: int) -> Sequence[float]:
        return ()
