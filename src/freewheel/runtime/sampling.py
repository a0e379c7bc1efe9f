"""Which samples a worker of a run takes: dealt out of one order, or from shards made beforehand."""

from __future__ import annotations

import torch

from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.sharding import load_manifest
from freewheel.streams.sampler import RoundSampler, Sampler, ShardSampler


def make_sampler(config: Config, num_samples: int, rank: int, workers: int) -> RoundSampler:
    """Make the sampler of one worker.

    Args:
        config: ``[data] shards`` names the folder that ``freewheel shard`` wrote, if there is one.
        num_samples: to train on.
        rank: of the worker.
        workers: that share out the samples.

    Raises:
        ConfigError: the shards were made for another number of workers.
        DataError: the shards are of other data, or damaged.

    Example:
        >>> from freewheel.config import Config
        >>> from freewheel.runtime.sampling import make_sampler
        >>> len(make_sampler(Config(), 100, rank=0, workers=2).next().indices)
        64
    """
    section, seed = config.data, config.run.seed
    if section.shards is None:
        return Sampler(num_samples, section.batch_size, seed, rank, workers, section.shuffle)
    manifest = load_manifest(section.shards)
    manifest.check_source(num_samples)
    if manifest.num_workers != workers:
        raise ConfigError(
            f"data.shards = {section.shards!r} was made for {manifest.num_workers} workers, and "
            f"this run has {workers}; shard again with --workers {workers}, or set layout.workers"
        )
    shards = [torch.from_numpy(manifest.indices(r).copy()) for r in range(workers)]
    return ShardSampler(shards, section.batch_size, seed, rank, section.shuffle)
