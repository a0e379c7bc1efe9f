"""A shard as a sampler of PyTorch's ``DataLoader``. Loads torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch.utils.data import Sampler

from freewheel.errors import ConfigError
from freewheel.sharding.manifest import Manifest


class ShardSampler(Sampler[int]):
    """Yields the indices of one worker's samples, in a new random order every epoch.

    The order depends on seed, rank and epoch alone, never on the number of loader workers. Call
    ``set_epoch`` before each epoch, as with ``DistributedSampler``.

    Args:
        indices: the samples of this worker, for example ``assign(...)[rank]``.
        shuffle: False yields ascending indices in every epoch.
        seed: of the order.
        rank: of this worker, so that workers draw different orders.

    Raises:
        ConfigError: an index is negative or stands twice.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from freewheel.sharding import assign
        >>> from freewheel.sharding.sampler import ShardSampler
        >>> data = TensorDataset(torch.arange(6.0)[:, None], torch.tensor([0, 1, 0, 1, 0, 1]))
        >>> shards = assign(None, data.tensors[1], "stratified", workers=3)
        >>> loader = DataLoader(data, batch_size=2, sampler=ShardSampler(shards[1], rank=1))
        >>> [sorted(labels.tolist()) for _, labels in loader]
        [[0, 1]]
    """

    def __init__(
        self, indices: ArrayLike, *, shuffle: bool = True, seed: int = 0, rank: int = 0
    ) -> None:
        self._indices = np.asarray(indices, dtype=np.int64).ravel()
        repeated = len(np.unique(self._indices)) < len(self._indices)
        if repeated or (self._indices < 0).any():
            raise ConfigError("indices of a shard must be >= 0 and without repeats")
        self._shuffle, self._seed, self._rank, self._epoch = shuffle, seed, rank, 0

    @classmethod
    def from_manifest(cls, manifest: Manifest, rank: int, **settings: Any) -> ShardSampler:
        """Return the sampler of worker ``rank`` of a manifest that was loaded."""
        return cls(manifest.indices(rank), rank=rank, **settings)

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next pass."""
        self._epoch = epoch

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[int]:
        order = self._indices
        if self._shuffle:
            rng = np.random.default_rng((self._seed, self._rank, self._epoch))
            order = rng.permutation(order)
        yield from order.tolist()
