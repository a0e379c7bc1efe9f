"""The pieces that own_factory.toml names; each process of the run imports this module."""

from __future__ import annotations

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.nn import functional as F


def two_moons(num_samples: int, noise: float = 0.2) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return (train, test); the seed makes it the same in every process."""
    x, y = make_moons(num_samples, noise=noise, random_state=0)
    inputs, targets = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    cut = num_samples * 4 // 5
    return (inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:])


def build(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2)
    )


def brier(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the Brier score: the mean squared distance of probabilities to what happened."""
    happened = F.one_hot(targets, logits.shape[1]).to(logits.dtype)
    return (logits.softmax(1) - happened).square().sum(1).mean()
