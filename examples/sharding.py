"""Divide a data set among four workers, look at how alike the shards are, and load one of them.

Run it with: python examples/sharding.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

from freewheel.sharding import assign, load_manifest, save_manifest
from freewheel.sharding.metrics import feature_discrepancy, label_total_variation
from freewheel.sharding.sampler import ShardSampler

WORKERS = 4


def main() -> None:
    bunch = load_digits()
    features, labels = bunch.data / 16, bunch.target

    for strategy in ("random", "stratified", "balanced"):
        shards = assign(features, labels, strategy, workers=WORKERS, seed=0)
        labels_apart = label_total_variation(shards, labels).mean()
        features_apart = feature_discrepancy(features, shards)
        print(
            f"{strategy:>10}: label total variation {labels_apart:.4f}, mean features "
            f"{features_apart.expected / features_apart.mean:6.1f} times closer than random expects"
        )

    # the last one on disk, and in plain PyTorch: each worker loads its own shard
    with tempfile.TemporaryDirectory() as home:
        path = save_manifest(
            Path(home) / "shards", shards, "balanced", source_name="digits", num_samples=len(labels)
        )
        manifest = load_manifest(path)  # every hash is checked
        manifest.check_source(len(labels))
    data = TensorDataset(torch.tensor(features, dtype=torch.float32), torch.tensor(labels))
    sampler = ShardSampler.from_manifest(manifest, rank=1, seed=0)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        seen = sum(len(batch) for batch, _ in loader)
        print(f"worker 1, epoch {epoch}: {seen} samples in {len(loader)} batches")


if __name__ == "__main__":
    main()
