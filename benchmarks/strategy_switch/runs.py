"""One training run in virtual time, with real gradients, and its accuracy on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.sharding.data import digits, fashion, pooled
from freewheel.models import partition
from freewheel.models.zoo import lenet, mlp
from freewheel.protocols import protocols
from freewheel.protocols.replicas import Fold, Reduced
from freewheel.simulate import Budget, Compute, LinkSpec, Observer, Simulation, Stragglers
from freewheel.simulate.training import Training, TrainingBatch
from freewheel.streams.sampler import Sampler


@dataclass
class Outcome:
    """What came of a run; accuracies in percent, times in virtual seconds.

    Args:
        curve: (time, accuracy on the part that is scored on the way).
        seen: what a criterion saw at each step under all-reduce, where that was asked for.
    """

    accuracy: float = 0.0
    virtual_s: float = 0.0
    curve: list[tuple[float, float]] = field(default_factory=list)
    switched_at: int | None = None
    steps: int = 0
    updates: int = 0
    wait_share: float = 0.0
    staleness_mean: float = 0.0
    samples: int = 0
    seen: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Data:
    """Tensors of the training part, and of the part that is scored."""

    inputs: Tensor
    targets: Tensor
    val_inputs: Tensor
    val_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor


def load(task: str, settings: Mapping[str, Any]) -> Data:
    """Return the first ``limit`` training samples, the next for validation, and the test."""
    found = digits() if settings["data"] == "digits" else fashion()
    shrink = pooled if settings[task]["pool"] else lambda images: images
    limit, held = settings[task]["limit"], settings["validation"]
    inputs = torch.from_numpy(shrink(found.inputs[: limit + held]))
    targets = torch.from_numpy(found.labels)
    return Data(
        inputs[:limit],
        targets[:limit],
        inputs[limit:],
        targets[limit : limit + held],
        torch.from_numpy(shrink(found.val_inputs)),
        torch.from_numpy(found.val_labels),
    )


def build(task: str, data: Data, seed: int) -> nn.Module:
    """Return the task's model as its seed begins it."""
    torch.manual_seed(seed)
    shape = tuple(data.inputs.shape[1:])
    made = mlp(shape, hidden=[64]) if task == "mlp" else lenet(shape, channels=(6, 16))
    return partition(made, stages=1).build(0)


class Curve(Observer):
    """Scores the server's parameters every so many steps of the run."""

    def __init__(self, every: int, num_workers: int, score: Callable[[], float]) -> None:
        self.every, self.num_workers, self.score = every, num_workers, score
        self.points: list[tuple[float, float]] = []
        self.steps = self.scored = 0
        self.now_s: Callable[[], float] = lambda: 0.0

    def stepped(self, *_: Any) -> None:
        self.steps += 1

    def folded(self, fold: Fold, version: int, now_s: float) -> None:
        if self.steps // (self.every * self.num_workers) > self.scored:
            self.scored = self.steps // (self.every * self.num_workers)
            self.points.append((now_s, self.score()))


def accuracy(module: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Return percent of samples that are told right."""
    with torch.no_grad():
        right = sum(
            int((module(x).argmax(1) == y).sum())
            for x, y in zip(inputs.split(2000), targets.split(2000), strict=True)
        )
    return 100.0 * right / len(targets)


def train(
    task: str,
    protocol: Mapping[str, Any],
    settings: Mapping[str, Any],
    seed: int,
    slow: int,
    keep_seen: bool = False,
) -> Outcome:
    """Train ``task`` under ``protocol``; ``slow`` workers are slower by ``settings["factor"]``."""
    data = load(task, settings)
    own = settings[task]
    workers, size = settings["workers"], settings["batch_size"]
    per_epoch = -(-len(data.inputs) // (size * workers))
    steps = own["epochs"] * per_epoch

    def batches(rank: int) -> Iterator[TrainingBatch]:
        sampler = Sampler(len(data.inputs), size, seed, rank, workers, True)
        while True:
            indices = sampler.next().indices
            yield data.inputs[indices], data.targets[indices], len(indices)

    def schedule(optimizer: Any) -> LambdaLR:
        # a tenth after half of the run, a hundredth after three quarters
        return LambdaLR(optimizer, lambda step: 0.1 ** sum(step >= m * steps for m in (0.5, 0.75)))

    module = build(task, data, seed)
    budget = Budget(steps, workers)
    training = Training(
        module,
        batches,
        nn.functional.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=own["lr"], momentum=settings["momentum"]),
        schedule,
        budget,
        size,
        clip_norm=settings.get("clip_norm"),
        seed=seed,
    )
    part = settings["scored"]
    inputs, targets = data.test_inputs[:part], data.test_targets[:part]
    curve = Curve(
        max(1, per_epoch // 2), workers, lambda: accuracy(training.server.module, inputs, targets)
    )

    def validate() -> float:
        with torch.no_grad():
            output = training.server.module(data.val_inputs)
            return float(nn.functional.cross_entropy(output, data.val_targets))

    given = dict(protocol)
    made = protocols.create(given.pop("name"), given)
    simulation = Simulation(
        made,
        training,
        workers,
        Compute(1.0, Stragglers(slow, settings["factor"]), jitter=settings["jitter"], seed=seed),
        LinkSpec(),
        observer=curve,
        steps_per_epoch=per_epoch,
        validate=validate,
    )
    result = simulation.run()
    folded = max(1, sum(result.staleness.values()))
    points = [*curve.points, (result.virtual_s, accuracy(training.server.module, inputs, targets))]
    waited, computed = sum(result.wait_s.values()), sum(result.compute_s.values())
    return Outcome(
        accuracy(training.server.module, data.test_inputs, data.test_targets),
        result.virtual_s,
        points,
        getattr(simulation.server.machine, "switched_at", None),
        steps,
        result.version,
        waited / (waited + computed),
        sum(value * count for value, count in result.staleness.items()) / folded,
        result.samples,
        [dict(e.evidence) for e in result.arrivals if isinstance(e, Reduced)] if keep_seen else [],
    )
