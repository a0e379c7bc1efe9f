"""WHAT the state will be: histories, and predictors of parameters that need no gradients.

Example:
    >>> import torch
    >>> from freewheel.predictors import predictors
    >>> velocity = predictors.create("velocity", {"estimate": "last"})
    >>> for clock in range(3):
    ...     velocity.observe(clock, torch.tensor([1.0, 2.0]) * clock)
    >>> velocity.predict(10)
    tensor([12., 24.])
"""

from freewheel.predictors import (
    acceleration,
    anderson,
    average,
    kalman,
    koopman,
    regression,
    static,
    trend,
    velocity,
)
from freewheel.predictors.base import BasePredictor, Predictor, predictors
from freewheel.predictors.history import History
from freewheel.predictors.per_tensor import PerTensor, per_tensor

__all__ = [
    "BasePredictor",
    "History",
    "PerTensor",
    "Predictor",
    "acceleration",
    "anderson",
    "average",
    "kalman",
    "koopman",
    "per_tensor",
    "predictors",
    "regression",
    "static",
    "trend",
    "velocity",
]
