"""Runs ``predictor_speed``: ``make bench NAME=predictor_speed``."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness import Benchmark, Figure, Metrics
from freewheel.predictors import predictors

TRAIN = "train"

#: Further settings of predictors whose cost depends on them, and every how many steps they observe.
#: Predictors that are not named here run as they come and observe each step.
ARMS: Mapping[str, tuple[str, Mapping[str, Any], int]] = {
    "velocity, last": ("velocity", {"estimate": "last"}, 1),
    "velocity, means": ("velocity", {"estimate": "means"}, 1),
    "velocity, ewma": ("velocity", {"estimate": "ewma"}, 1),
    "velocity, ewma, every 4th": ("velocity", {"estimate": "ewma"}, 4),
    "velocity, window, shrunk": ("velocity", {"shrink": True}, 1),
    "velocity, ewma, shrunk, every 4th": ("velocity", {"estimate": "ewma", "shrink": True}, 4),
    "regression, degree 2": ("regression", {"degree": 2}, 1),
    "anderson, every 4th": ("anderson", {}, 4),
    "trend, every 4th": ("trend", {}, 4),
    "kalman, every 4th": ("kalman", {}, 4),
    "koopman, every 4th": ("koopman", {}, 4),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure training and all predictors and write the results."""
    torch.set_num_threads(1)
    bench = Benchmark.from_command("predictor_speed", argv)
    arms = {name: (name, {}, 1) for name in predictors.names()} | dict(ARMS)
    bench.run(
        {TRAIN: partial(train, bench.settings)}
        | {arm: partial(coast, bench.settings, *made) for arm, made in arms.items()}
    )
    bench.write(
        {
            f"cost of a coasted step, {arm}": Figure(
                asked=0.2,
                rule="at_most",
                statistic="ratio_of_medians",
                metric="step_ms",
                arm=arm,
                against=TRAIN,
            )
            for arm in arms
        }
    )
    return 0


def train(settings: Mapping[str, Any], seed: int) -> Metrics:
    """Time one forward and backward."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(settings["widths"]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    model = nn.Sequential(*layers[:-1])
    inputs = torch.randn(settings["batch_size"], settings["widths"][0])
    labels = torch.randint(settings["widths"][-1], (settings["batch_size"],))

    def step() -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()

    for _ in range(3):
        step()
    times = [timed(step) for _ in range(settings["real"] * settings["repeats"])]
    return {"step_ms": statistics.median(times), "observe_ms": None, "predict_ms": None}


def coast(
    settings: Mapping[str, Any], name: str, chosen: Mapping[str, Any], every: int, seed: int
) -> Metrics:
    """Time observations of real steps and one prediction."""
    real, coasted = settings["real"], settings["coasted"]
    states = path(num_values(settings["widths"]), seed)
    observing, predicting = [], []
    for repeat in range(settings["repeats"]):
        predictor = predictors.create(name, chosen)
        times = []
        for clock in range(0, real, every):
            state = states[clock // every % len(states)]
            times.append(timed(partial(predictor.observe, repeat * real + clock, state)))
        observing.append(sum(times))
        predicting.append(timed(partial(predictor.predict, coasted)))
    observe, predict = statistics.median(observing), statistics.median(predicting)
    return {
        "step_ms": (observe + predict) / coasted,
        "observe_ms": observe * every / real,
        "predict_ms": predict,
    }


def num_values(widths: Sequence[int]) -> int:
    """Return how many parameters the MLP has."""
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))


def path(size: int, seed: int) -> list[Tensor]:
    """Return a few states that drift, with noise, so that no predictor has an easy case."""
    generator = torch.Generator().manual_seed(seed)
    start, drift = torch.randn(2, size, generator=generator)
    noise = [torch.randn(size, generator=generator) for _ in range(6)]
    return [start + 1e-2 * clock * drift + 1e-3 * noise[clock] for clock in range(6)]


def timed(work: Any) -> float:
    """Return how many milliseconds a call took."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1e3


if __name__ == "__main__":
    raise SystemExit(main())
