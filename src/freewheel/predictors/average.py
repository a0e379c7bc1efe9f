"""The mean of the last states: what averaging of iterates predicts."""

from __future__ import annotations

from collections.abc import Sequence

from freewheel.predictors.base import predictors
from freewheel.predictors.window import WindowPredictor


@predictors.register("average")
class Average(WindowPredictor):
    r"""Predicts the mean of the last states, at any horizon above 0.

    .. math:: \hat x(t + h) = \frac{1}{n} \sum_{i=1}^{n} x_i

    Under a constant learning rate the iterates circle round a point that their mean is close to.

    Args:
        window: states averaged, >= 1.

    Example:
        >>> import torch
        >>> from freewheel.predictors.average import Average
        >>> predictor = Average(window=2)
        >>> for clock in range(3):
        ...     predictor.observe(clock, torch.tensor([float(clock)]))
        >>> predictor.predict(7)
        tensor([1.5000])

    References:
        Kaddour, "Stop wasting my time! Saving days of ImageNet and BERT training with latest
        weight averaging", 2022.
    """

    def __init__(self, window: int = 8) -> None:
        super().__init__(window)

    def _weights(self, horizon: int) -> Sequence[float]:
        return [1.0 / self.num_observed] * (self.num_observed - 1)
