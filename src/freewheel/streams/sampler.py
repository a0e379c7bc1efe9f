"""Which samples a worker takes at each step, so that all together take each once an epoch.

``Sampler`` deals out one order of all samples; ``ShardSampler`` keeps to given shards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from freewheel.errors import DataError
from freewheel.streams.cursor import Positions
from freewheel.streams.rounds import Batch, RoundSampler

__all__ = ["Batch", "RoundSampler", "Sampler", "ShardSampler"]


class Sampler(RoundSampler):
    """Deals one order of all samples out to the workers, batch by batch.

    At each step worker r of N takes the r-th of the next N batches of the epoch's order. Where
    samples run out the last batch is smaller and the workers after it get none.

    Args:
        num_samples: in the data set, at least 1.
        batch_size: of one worker, at least 1.
        seed: of the order, at least 0; each epoch has its own order.
        rank: of this worker.
        world_size: workers in all.
        shuffle: False takes samples in ascending order.
        indices: int64, use only these samples; None for 0 to ``num_samples`` - 1.

    Raises:
        ConfigError: a number is out of its range.
        DataError: there are no samples, or an index is repeated or outside the data set.

    Example:
        >>> from freewheel.streams.sampler import Sampler
        >>> one, two = (Sampler(21, 8, seed=0, rank=rank, world_size=2) for rank in range(2))
        >>> [(len(one.next().indices), len(two.next().indices)) for _ in range(3)]
        [(8, 8), (5, 0), (8, 8)]
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        shuffle: bool = True,
        indices: Tensor | None = None,
    ) -> None:
        if indices is None:
            samples = np.arange(num_samples)
        else:
            samples = _numbers(indices)
            _check_samples(samples, num_samples)
        super().__init__(samples, batch_size, seed, rank, world_size, shuffle)

    def _deal(self, members: Positions) -> Sequence[Positions]:
        width = self.batch_size * self.world_size
        full = len(members) // width * width
        rounds = np.arange(full).reshape(-1, self.world_size, self.batch_size)
        rest = np.array_split(
            np.arange(full, len(members)),
            [self.batch_size * rank for rank in range(1, self.world_size)],
        )
        return [
            np.concatenate((rounds[:, rank].reshape(-1), rest[rank]))
            for rank in range(self.world_size)
        ]


class ShardSampler(RoundSampler):
    """Gives each worker the samples of its own shard, in an order of each epoch.

    Shards may differ in size, and may be empty: an epoch has as many rounds as the largest needs,
    and a worker whose shard is used up gets empty batches until then. On resuming with another
    number of workers each sample that is pending goes to the worker whose new shard has it.

    Args:
        shards: one int64 tensor of sample numbers a worker; no sample twice.
        batch_size: of one worker, at least 1.
        seed: of the order within shards, at least 0.
        rank: of this worker; ``len(shards)`` is the world size.
        shuffle: False takes each shard in ascending order of sample number.

    Raises:
        ConfigError: a number is out of its range.
        DataError: all shards are empty, or a sample is in two of them.

    Example:
        >>> import torch
        >>> from freewheel.streams.sampler import ShardSampler
        >>> shards = [torch.arange(5), torch.arange(5, 8), torch.arange(0)]
        >>> first, second, third = (ShardSampler(shards, 2, seed=0, rank=rank) for rank in range(3))
        >>> [(len(first.next().indices), len(second.next().indices)) for _ in range(3)]
        [(2, 2), (2, 1), (1, 0)]
        >>> third.next().indices.tolist(), third.next().num_in_round
        ([], 3)
    """

    def __init__(
        self,
        shards: Sequence[Tensor],
        batch_size: int,
        seed: int,
        rank: int = 0,
        shuffle: bool = True,
    ) -> None:
        numbers = [_numbers(shard) for shard in shards]
        samples = np.sort(np.concatenate(numbers)) if numbers else np.arange(0)
        _check_samples(samples, None)
        self._owner = np.empty(len(samples), dtype=np.int64)
        for owner, shard in enumerate(numbers):
            self._owner[np.searchsorted(samples, shard)] = owner
        super().__init__(samples, batch_size, seed, rank, len(numbers), shuffle)

    def _deal(self, members: Positions) -> Sequence[Positions]:
        owners = self._owner[members]
        return [np.flatnonzero(owners == rank) for rank in range(self.world_size)]


def _numbers(indices: Tensor) -> Positions:
    return indices.to(torch.int64).numpy()


def _check_samples(samples: Positions, num_samples: int | None) -> None:
    if len(samples) == 0:
        return
    if samples.min() < 0 or (num_samples is not None and samples.max() >= num_samples):
        raise DataError(
            f"sample numbers must be from 0 to {num_samples and num_samples - 1}, got "
            f"{samples.min()} to {samples.max()}: check the list of indices"
        )
    values, counts = np.unique(samples, return_counts=True)
    if counts.max() > 1:
        raise DataError(
            f"sample {values[counts.argmax()]} is listed {counts.max()} times; each sample must "
            "be in one place once: check the indices or the sharding manifest"
        )
