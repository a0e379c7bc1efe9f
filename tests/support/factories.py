"""Models and data that test runs name as ``factories:...``; child processes import them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn


def small_data(num_samples: int = 40, nan_at: int | None = None) -> tuple[tuple[Tensor, ...], ...]:
    """Return (train, test), the same in every process."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(num_samples, 6, generator=generator)
    y = torch.randint(0, 3, (num_samples,), generator=generator)
    if nan_at is not None:
        x[nan_at, 0] = float("nan")
    return (x, y), (x, y)


def small_model() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))


def batchnorm_model() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


class Strided(nn.Module):
    """Its weight's gradient is not contiguous; one parameter is used by some batches only."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6))
        self.sometimes = nn.Parameter(torch.ones(3))
        self.never = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        # expand + transpose gives the gradient of a transposed view
        out = x @ self.weight.t().contiguous().t().t()
        return out * self.sometimes if float(x[0, 0]) > 0 else out


def strided_model() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(Strided())


class Fails(nn.Module):
    """Raises, dies, or stops answering at a given call, once it is past the first layer."""

    def __init__(self, how: str, at: int) -> None:
        super().__init__()
        self.how, self.at, self.calls = how, at, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.at:
            if self.how == "raise":
                raise RuntimeError("this layer has had enough")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            if self.how == "exit":
                os._exit(3)
        return x


def failing_model(how: str = "raise", at: int = 3) -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Fails(how, at), nn.Linear(8, 3))


class Waits(nn.Module):
    """Holds each step up until a file is there."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.file = Path(file)

    def forward(self, x: Tensor) -> Tensor:
        while self.training and not self.file.exists():
            time.sleep(0.01)
        return x


def waiting_model(file: str) -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Waits(file), nn.Linear(8, 3))


def wide_layers(width: int = 3000, depth: int = 8) -> list[object]:
    """Return builders of layers that are too many for one process, and few enough for two."""

    def first() -> nn.Module:
        return nn.Linear(6, width)

    def middle() -> nn.Module:
        return nn.Linear(width, width)

    def last() -> nn.Module:
        return nn.Linear(width, 3)

    return [first, *[middle] * depth, last]


def process_name() -> str:
    """Return role and rank of the process that asks; empty in none that freewheel started."""
    job = json.loads(os.environ.get("FREEWHEEL_JOB", "{}"))
    return f"{job['role']} {job['rank']}" if job else ""


class Incident(nn.Module):
    """Passes its input on; at a given training call of one process something happens, once.

    ``wait``: until ``file`` is there; ``file.reached`` tells that it waits. ``kill`` and ``stop``:
    SIGKILL or SIGSTOP to itself, if ``file`` is not there yet; it is made.
    """

    def __init__(self, what: str, at: int, file: str, who: str) -> None:
        super().__init__()
        self.what, self.at, self.file, self.who, self.calls = what, at, Path(file), who, 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        self.calls += 1
        if self.calls == self.at and process_name() == self.who:
            if self.what == "wait":
                self.file.with_suffix(".reached").touch()
                while not self.file.exists():
                    time.sleep(0.01)
            elif not self.file.exists():
                self.file.touch()
                os.kill(os.getpid(), getattr(signal, f"SIG{self.what.upper()}"))
        return x


def eventful_model(
    what: str = "wait", at: int = 0, file: str = "", who: str = "", dropout: float = 0.2
) -> nn.Sequential:
    """Return a model with all that keeps state beside its parameters; even cuts suit 1 to 3 stages.

    BatchNorm lies on the first of two stages, what happens on the last one.
    """
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Linear(6, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(dropout),
        nn.Tanh(),
        Incident(what, at, file, who),
        nn.Linear(8, 3),
    )


def dropping_model() -> nn.Sequential:
    """Return a model with running statistics and random numbers of its own in training."""
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(inplace=True),
        nn.Dropout(0.2),
        nn.Linear(16, 8),
        nn.Tanh(),
        nn.Dropout(0.2),
        nn.Linear(8, 3),
    )
