"""What sharding costs: seconds of processor time on one thread, and wall seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.sharding.shards import make

Measure = Callable[[int], dict[str, float]]


def timed(
    name: str, data: Callable[[int], tuple[NDArray[Any], NDArray[np.int64]]], workers: int
) -> Measure:
    """Return a measure of the time that one sharding takes."""

    def measure(seed: int) -> dict[str, float]:
        features, labels = data(seed)
        cpu, wall = time.process_time(), time.perf_counter()
        make(name, features, labels, workers, seed)
        return {
            "cpu_s": time.process_time() - cpu,
            "wall_s": time.perf_counter() - wall,
            "us_per_sample": 1e6 * (time.process_time() - cpu) / len(labels),
        }

    return measure


def mixture(rows: int, features: int) -> Callable[[int], tuple[NDArray[Any], NDArray[np.int64]]]:
    """Return a maker of synthetic samples: 10 classes of two clusters each."""

    def made(seed: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        rng = np.random.default_rng(seed)
        hidden = rng.integers(0, 20, rows)
        centres = rng.normal(size=(20, features)).astype(np.float32)
        noise = rng.standard_normal((rows, features), dtype=np.float32)
        return centres[hidden] + noise, hidden // 2

    return made
