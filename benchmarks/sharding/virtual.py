"""Asynchronous training in virtual time, many runs at once: one event of every run per step.

Each worker pulls the server's weights, takes ``local_steps`` steps of SGD on its own shard, and
pushes the difference, which the server adds. Order of events: step times are lognormal around each
worker's own. A run's weights are exact, not approximated: runs only share their matrix products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HIDDEN = 64
JITTER = 0.1


@dataclass(frozen=True)
class Regime:
    """How workers train.

    Args:
        workers: how many.
        slow: how many of them are slower.
        factor: how much slower.
        local_steps: steps between pulls.
        batch_size: samples in a step.
        lr: at the start; a tenth after half of the updates, a hundredth after three quarters.
    """

    workers: int = 12
    slow: int = 0
    factor: float = 1.0
    local_steps: int = 1
    batch_size: int = 16
    lr: float = 0.1


@dataclass(frozen=True)
class Seeds:
    """Of one run: where the network starts, the order of samples, and the times of steps."""

    start: int
    order: int
    times: int


def schedule(regime: Regime, updates: int, seed: int) -> NDArray[np.int64]:
    """Return which worker pushes at each update, shape (updates,)."""
    rng = np.random.default_rng((1, seed))
    mean = np.ones(regime.workers)
    mean[: regime.slow] = regime.factor
    rounds = (
        int(np.ceil(1.5 * updates / regime.workers * (regime.factor if regime.slow else 1))) + 9
    )
    steps = mean[:, None] * rng.lognormal(0.0, JITTER, (regime.workers, rounds))
    times = np.cumsum(steps, axis=1)
    order = np.argsort(times, axis=None, kind="stable")[:updates]
    return order // rounds


def batches(
    shards: Sequence[NDArray[np.int64]], workers: NDArray[np.int64], regime: Regime, seed: int
) -> NDArray[np.int32]:
    """Return the samples of each step of each update, shape (updates, local_steps, batch_size)."""
    rng = np.random.default_rng((2, seed))
    per_update = regime.local_steps * regime.batch_size
    found = np.empty((len(workers), per_update), dtype=np.int32)
    for worker, shard in enumerate(shards):
        mine = np.flatnonzero(workers == worker)
        needed = len(mine) * per_update
        passes = -(-needed // len(shard)) if needed else 0
        stream = [rng.permutation(shard) for _ in range(passes)]
        if stream:
            found[mine] = np.concatenate(stream)[:needed].reshape(len(mine), per_update)
    return found.reshape(len(workers), regime.local_steps, regime.batch_size)


class Runs:
    """The weights of many runs: the server's, and those that each worker holds."""

    def __init__(self, num_inputs: int, classes: int, workers: int, starts: Sequence[int]) -> None:
        shapes = [(num_inputs, HIDDEN), (1, HIDDEN), (HIDDEN, classes), (1, classes)]
        self.server: list[Tensor] = []
        for shape in shapes:
            drawn = []
            for start in starts:
                generator = torch.Generator().manual_seed(1000 * start + shape[0])
                bound = (num_inputs if shape[1] == HIDDEN else HIDDEN) ** -0.5
                drawn.append((torch.rand(shape, generator=generator) * 2 - 1) * bound)
            self.server.append(torch.stack(drawn))
        self.held = [value[:, None].repeat(1, workers, 1, 1) for value in self.server]
        self.runs = torch.arange(len(starts))

    def update(self, workers: Tensor, rows: Tensor, targets: Tensor, lr: float) -> None:
        """Take one update of every run: rows (S, H, B, D), targets (S, H, B)."""
        old = [value[self.runs, workers] for value in self.held]
        new = [value.clone() for value in old]
        for step in range(rows.shape[1]):
            _sgd(new, rows[:, step], targets[:, step], lr)
        for server, held, after, before in zip(self.server, self.held, new, old, strict=True):
            server += after - before
            held[self.runs, workers] = server

    def evaluate(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return loss and accuracy of every run, shape (S,), and predictions (S, N)."""
        first, bias, second, out_bias = self.server
        losses, guesses = [], []
        for part, answers in zip(rows.split(2000), targets.split(2000), strict=True):
            hidden = torch.relu(part @ first + bias)
            logs = torch.log_softmax(hidden @ second + out_bias, dim=2)
            losses.append(-logs[:, torch.arange(len(part)), answers])
            guesses.append(logs.argmax(dim=2))
        predictions = torch.cat(guesses, dim=1)
        right = (predictions == targets).float().mean(dim=1)
        return torch.cat(losses, dim=1).mean(dim=1), right, predictions


def _sgd(weights: list[Tensor], rows: Tensor, targets: Tensor, lr: float) -> None:
    first, bias, second, out_bias = weights
    hidden = torch.relu(torch.baddbmm(bias, rows, first))
    error = torch.softmax(torch.baddbmm(out_bias, hidden, second), dim=2)
    error.scatter_add_(2, targets[:, :, None], torch.full_like(error[:, :, :1], -1.0))
    error *= lr / rows.shape[1]
    back = torch.bmm(error, second.transpose(1, 2)) * (hidden > 0)
    second.baddbmm_(hidden.transpose(1, 2), error, alpha=-1.0)
    out_bias -= error.sum(dim=1, keepdim=True)
    first.baddbmm_(rows.transpose(1, 2), back, alpha=-1.0)
    bias -= back.sum(dim=1, keepdim=True)


@dataclass(frozen=True)
class Outcome:
    """What came of many runs; one value per run.

    Args:
        final: train_loss, train_accuracy, val_loss, val_accuracy.
        curves: validation accuracy after each epoch, shape (S, epochs).
        predictions: of the validation samples, shape (S, N).
    """

    final: dict[str, NDArray[np.float64]]
    curves: NDArray[np.float64]
    predictions: NDArray[np.int64]


def train(
    inputs: NDArray[np.float32],
    labels: NDArray[np.int64],
    val_inputs: NDArray[np.float32],
    val_labels: NDArray[np.int64],
    shards: Sequence[Sequence[NDArray[np.int64]]],
    seeds: Sequence[Seeds],
    regime: Regime,
    epochs: int,
) -> Outcome:
    """Train every run on its own shards; all arrays flattened to (N, D)."""
    per_epoch = -(-len(labels) // (regime.batch_size * regime.local_steps))
    updates = epochs * per_epoch
    order = [schedule(regime, updates, one.times) for one in seeds]
    plan = torch.from_numpy(
        np.stack(
            [
                batches(*pair, regime, one.order)
                for pair, one in zip(zip(shards, order, strict=True), seeds, strict=True)
            ]
        )
    )
    workers = torch.from_numpy(np.stack(order))
    rows, targets = torch.from_numpy(inputs), torch.from_numpy(labels)
    val_rows, val_targets = torch.from_numpy(val_inputs), torch.from_numpy(val_labels)
    classes = int(labels.max()) + 1
    runs = Runs(inputs.shape[1], classes, regime.workers, [one.start for one in seeds])
    curves = []
    for update in range(updates):
        lr = regime.lr * (
            1.0 if update < updates // 2 else 0.1 if update < 3 * updates // 4 else 0.01
        )
        chosen = plan[:, update].long()
        runs.update(workers[:, update], rows[chosen], targets[chosen], lr)
        if (update + 1) % per_epoch == 0:
            curves.append(runs.evaluate(val_rows, val_targets)[1])
    train_loss, train_right, _ = runs.evaluate(rows, targets)
    val_loss, val_right, predictions = runs.evaluate(val_rows, val_targets)
    final = {
        "train_loss": train_loss,
        "train_accuracy": train_right,
        "val_loss": val_loss,
        "val_accuracy": val_right,
    }
    return Outcome(
        {key: value.double().numpy() for key, value in final.items()},
        torch.stack(curves, dim=1).double().numpy(),
        predictions.numpy(),
    )
