"""The two models of the comparisons with peers, in plain PyTorch, as two stages each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

NUM_CLASSES = 10
NUM_SAMPLES = 4096


def mlp() -> list[nn.Module]:
    """Return 784-512-512-10 in two stages: 512 values a sample cross the cut."""
    first = nn.Sequential(nn.Flatten(), nn.Linear(784, 512), nn.ReLU())
    second = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, NUM_CLASSES))
    return [first, second]


def lenet() -> list[nn.Module]:
    """Return LeNet with 16 and 32 channels in two stages: 800 values a sample cross the cut."""
    first = nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2)),
    )
    second = nn.Sequential(
        *(nn.Flatten(), nn.Linear(800, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, NUM_CLASSES)),
    )
    return [first, second]


MODELS: dict[str, Callable[[], list[nn.Module]]] = {"mlp": mlp, "lenet": lenet}


def build(name: str, seed: int) -> list[nn.Module]:
    """Return the stages of a model with the initial values of a seed, the same in each process."""
    torch.manual_seed(seed)
    return MODELS[name]()


def samples(num: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return random images (num, 1, 28, 28) and labels (num,), the same in each process."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(num, 1, 28, 28, generator=generator)
    return images, torch.randint(0, NUM_CLASSES, (num,), generator=generator)


def parts(num: int = NUM_SAMPLES, seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the samples as freewheel takes them (``[data] factory``), a few of them to score."""
    images, labels = samples(num, seed)
    return {"train": (images, labels), "test": (images[:64], labels[:64])}
