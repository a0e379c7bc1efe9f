"""What the parameter servers that are compared share: model, batches, arguments, the JSON line."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that all have."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--hidden", type=int, default=63, help="795 parameters for each")
    made.add_argument("--warmup", type=int, default=10)
    made.add_argument("--updates", type=int, default=100, help="of each worker, behind the warm-up")
    made.add_argument("--workers", type=int, default=2)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument(
        "--fixed-gradient", action="store_true", help="push the same, compute nothing"
    )
    return made


def build(hidden: int, seed: int) -> nn.Sequential:
    """Return the model: 784 inputs, one hidden layer, 10 classes."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))


def batch(seed: int) -> tuple[Tensor, Tensor]:
    """Return 32 random samples."""
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(32, 784, generator=generator),
        torch.randint(0, 10, (32,), generator=generator),
    )


def seconds_of(step: Callable[[], None], warmup: int, updates: int) -> float:
    """Take ``warmup`` steps, then time ``updates``."""
    for _ in range(warmup):
        step()
    start = time.perf_counter()
    for _ in range(updates):
        step()
    return time.perf_counter() - start


def report(seconds: Sequence[float], updates: int) -> None:
    """Print the JSON line: all workers' updates, by the time of the slowest."""
    rate = len(seconds) * updates / max(seconds)
    print(json.dumps({"updates_per_s": rate}), flush=True)
