"""Gradients of every sample, projected on random directions, so that many shardings are cheap."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional


def sketched(
    model: nn.Module,
    inputs: NDArray[np.float32],
    labels: NDArray[np.int64],
    directions: int,
    file: Path,
    seed: int = 0,
    batch_rows: int = 50,
) -> NDArray[np.float32]:
    """Return each sample's gradient, its parameters added up with random signs in ``directions``
    bins, shape (N, directions), memory-mapped from a file that is made if it is not there.

    Squared distances between sums of such rows are those between sums of gradients on average over
    the signs (Charikar, Chen, Farach-Colton, "Finding frequent items in data streams", 2002), with
    a relative standard deviation of at most sqrt(2 / directions).
    """
    if not file.exists():
        weights = {key: value.detach() for key, value in model.named_parameters()}
        total = sum(value.numel() for value in weights.values())
        generator = torch.Generator().manual_seed(seed)
        signs = torch.randint(0, 2, (total,), generator=generator).float() * 2 - 1
        bins = torch.randint(0, directions, (total,), generator=generator)

        def loss(values: dict[str, Tensor], row: Tensor, target: Tensor) -> Tensor:
            return functional.cross_entropy(
                functional_call(model, values, (row[None],)), target[None]
            )

        per_sample: Any = vmap(grad(loss), (None, 0, 0))
        aside = file.with_suffix(".part.npy")
        made = np.lib.format.open_memmap(
            aside, "w+", dtype=np.float32, shape=(len(inputs), directions)
        )
        for first in range(0, len(inputs), batch_rows):
            rows = torch.from_numpy(inputs[first : first + batch_rows])
            targets = torch.from_numpy(labels[first : first + batch_rows])
            found = per_sample(weights, rows, targets)
            flat = torch.cat([found[key].reshape(len(rows), -1) for key in weights], dim=1)
            binned = torch.zeros(len(rows), directions).index_add_(1, bins, flat * signs)
            made[first : first + batch_rows] = binned.numpy()
        made.flush()
        del made
        aside.replace(file)
    return np.load(file, mmap_mode="r", allow_pickle=False)


def dispersion(rows: NDArray[np.float32], shards: Sequence[NDArray[np.int64]]) -> float:
    """Return the mean over workers of |mean of its rows - mean of all rows|^2."""
    sums = np.zeros((len(shards), rows.shape[1]))
    sizes = np.array([len(shard) for shard in shards], dtype=np.float64)
    member = np.full(len(rows), -1)
    copies = []
    for rank, shard in enumerate(shards):
        fresh = member[shard] < 0
        member[shard[fresh]] = rank
        copies.append(shard[~fresh])
    for first in range(0, len(rows), 2048):
        part = np.asarray(rows[first : first + 2048], dtype=np.float64)
        marks = (member[first : first + 2048] == np.arange(len(shards))[:, None]).astype(float)
        sums += marks @ part
    for rank, shard in enumerate(copies):
        if len(shard):
            sums[rank] += np.asarray(rows[shard], dtype=np.float64).sum(axis=0)
    mean = sums.sum(axis=0) / sizes.sum()
    kept = sizes > 0
    return float((((sums[kept] / sizes[kept, None]) - mean) ** 2).sum(axis=1).mean())
