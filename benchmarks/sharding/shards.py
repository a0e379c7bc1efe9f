"""Shards of the benchmark's tasks by name, kept in the work folder once they are made."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import WORK
from freewheel.sharding import ShardingWarning, assign

Shards = list[NDArray[np.int64]]
FOLDER = WORK / "sharding"


def parse(name: str) -> tuple[str, dict[str, Any]]:
    """Return strategy and settings of ``strategy:key=value,...``."""
    strategy, _, text = name.partition(":")
    pairs = (part.split("=", 1) for part in text.split(",") if part)
    return strategy, {key: json.loads(value) for key, value in pairs}


def make(
    name: str, features: NDArray[Any], labels: NDArray[np.int64], workers: int, seed: int
) -> Shards:
    """Make shards; ``contiguous_on_sorted`` cuts a file that is sorted by label."""
    if name == "contiguous_on_sorted":
        order = np.random.default_rng(seed).permutation(len(labels))
        order = order[np.argsort(labels[order], kind="stable")]
        return [np.sort(part) for part in np.array_split(order, workers)]
    strategy, settings = parse(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShardingWarning)
        return assign(features, labels, strategy, workers=workers, seed=seed, **settings)


def cached(
    task: str,
    name: str,
    features: NDArray[Any],
    labels: NDArray[np.int64],
    workers: int,
    seed: int,
) -> Shards:
    """Return shards that were made before, or make them."""
    file = FOLDER / f"{task}-{workers}-{_file_name(name)}-{seed}.npz"
    if not file.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        shards = make(name, features, labels, workers, seed)
        aside = file.with_suffix(".part.npz")
        np.savez(aside, **{str(rank): shard for rank, shard in enumerate(shards)})
        aside.replace(file)
    return _load(file)


def _load(file: Path) -> Shards:
    with np.load(file, allow_pickle=False) as archive:
        return [archive[str(rank)] for rank in range(len(archive.files))]


def _file_name(name: str) -> str:
    return name.replace(":", "_").replace("=", "_").replace(",", "_")
