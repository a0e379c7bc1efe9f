"""Fashion-MNIST and scikit-learn's digits as arrays, inputs of mean 0 and variance 1."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from freewheel.sharding.sources import open_source
from freewheel.streams.finding import find_file

SYSTEM = Path("/usr/share/datasets")


@dataclass(frozen=True)
class Data:
    """Training and validation samples: inputs (N, ...) float32, labels (N,) int64."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.int64]
    val_inputs: NDArray[np.float32]
    val_labels: NDArray[np.int64]


@cache
def fashion() -> Data:
    train, test = _idx("train"), _idx("t10k")
    return Data(*train, *test)


def _idx(part: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    name = f"{part}-images-idx3-ubyte"
    path = find_file(
        "fashion-mnist",
        [name, f"{name}.gz"],
        [SYSTEM / "fashion-mnist"],
        "scripts/fetch_data.sh fashion-mnist",
    )
    with tempfile.TemporaryDirectory() as scratch:
        source = open_source(path, Path(scratch))
        assert source.features is not None
        assert source.labels is not None
        pixels = np.concatenate([*source.features.batches(4096)])
    inputs = (pixels.astype(np.float32) / 255 - 0.2860) / 0.3530
    return inputs, source.labels.astype(np.int64)


@cache
def digits() -> Data:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    inputs = ((bunch.images - bunch.images.mean()) / bunch.images.std()).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(inputs))
    inputs, labels = inputs[order], bunch.target.astype(np.int64)[order]
    return Data(inputs[360:], labels[360:], inputs[:360], labels[:360])


def all_digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    data = digits()
    return (
        np.concatenate([data.inputs, data.val_inputs]),
        np.concatenate([data.labels, data.val_labels]),
    )


def pooled(inputs: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return images of half the size each way, by 2 x 2 means."""
    count, height, width = inputs.shape
    return inputs.reshape(count, height // 2, 2, width // 2, 2).mean(axis=(2, 4))
