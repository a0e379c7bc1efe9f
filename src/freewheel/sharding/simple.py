"""Sharders that look at neither features nor labels: in file order, and at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from freewheel.sharding.base import Sharder, sharders
from freewheel.sharding.samples import Indices, Samples
from freewheel.sharding.shares import cut


@sharders.register("contiguous")
@dataclass(frozen=True)
class Contiguous(Sharder):
    """File order, cut into pieces: what a distributed file system gives without thinking.

    Where files are sorted by label or by date, workers see different distributions.

    Example:
        >>> from freewheel.sharding import assign
        >>> [s.tolist() for s in assign([[1], [2], [3]], strategy="contiguous", workers=2)]
        [[0, 1], [2]]
    """

    name: ClassVar[str] = "contiguous"

    def shard(self, samples: Samples, sizes: Indices, seed: int) -> list[Indices]:
        """Return consecutive runs of samples."""
        return cut(np.arange(samples.num_samples), sizes)


@sharders.register("random")
@dataclass(frozen=True)
class Random(Sharder):
    """A random permutation, cut into pieces: the baseline of everything else.

    Example:
        >>> from freewheel.sharding import assign
        >>> [len(shard) for shard in assign([[1], [2], [3]], strategy="random", workers=2)]
        [2, 1]
    """

    name: ClassVar[str] = "random"

    def shard(self, samples: Samples, sizes: Indices, seed: int) -> list[Indices]:
        """Return pieces of a random permutation."""
        return cut(np.random.default_rng(seed).permutation(samples.num_samples), sizes)
