"""What every sharder keeps, and the function that most people need: ``assign``."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from freewheel.errors import ConfigError
from freewheel.registry import Registry
from freewheel.sharding.samples import Features, Indices, Samples, collect
from freewheel.sharding.shares import shard_sizes

sharders: Registry[Sharder] = Registry(kind="sharder", group="freewheel.sharders")


class ShardingWarning(UserWarning):
    """An assignment is valid but perhaps not what was wanted, for example an empty shard."""


class Sharder(ABC):
    """Decides which worker gets which sample. A value: its settings, and no state.

    The same samples, sizes and seed give the same shards, whatever the machine, the number of
    threads, or the size of batches in which the features are read.

    Attributes:
        name: what it is registered under.
        exact: every sample goes to exactly one worker; else it says which are left out or copied.
        sized: shards have the sizes asked for; else it says what their sizes are.
        reads_features: it needs features.
        needs_labels: it cannot do without labels.
    """

    name: ClassVar[str] = ""
    exact: ClassVar[bool] = True
    sized: ClassVar[bool] = True
    reads_features: ClassVar[bool] = False
    needs_labels: ClassVar[bool] = False

    @abstractmethod
    def shard(self, samples: Samples, sizes: Indices, seed: int) -> list[Indices]:
        """Return the samples of each worker.

        Args:
            samples: features and labels; already checked, at least one sample.
            sizes: how many samples each worker should get, shape (workers,), sum N, zeros allowed.
            seed: of everything random.

        Returns:
            One ascending int64 array of indices per worker.

        Raises:
            DataError: the samples lack what this sharder needs.
        """


def assign(
    features: ArrayLike | Features | None,
    labels: ArrayLike | None = None,
    strategy: str = "balanced",
    workers: int = 12,
    seed: int = 0,
    *,
    speeds: Sequence[float] | None = None,
    **settings: Any,
) -> list[Indices]:
    """Divide samples among workers so that all see the same distribution, or as ``strategy`` says.

    Args:
        features: shape (N, ...), real numbers; a memory-mapped array or an object with the methods
            of ``samples.Features`` is read in batches. None for a strategy that reads none.
        labels: shape (N,): classes (integers, whole floats, text) or numbers to be regressed; shape
            (N, L) of zeros and ones: several labels per sample; None: no labels.
        strategy: ``"balanced"``, ``"class_cluster"``, ``"distribution_aware"``, ``"stratified"``,
            ``"random"``, ``"contiguous"``, ``"label_sorted"``, ``"dirichlet"``, or a name that
            another package registered.
        workers: how many workers.
        seed: of everything random; the same seed gives the same shards on every machine.
        speeds: measured speed of each worker, in any unit: sizes become proportional to it while
            the distribution stays equal. None for equal workers.
        settings: of the strategy.

    Returns:
        For each worker an ascending int64 array of the indices of its samples.

    Raises:
        ConfigError: an unknown strategy or setting, or fewer than one worker.
        DataError: no samples, lengths that differ, NaN, or no features where they are needed.

    Warns:
        ShardingWarning: there are more workers than samples, so that some shards are empty.

    Example:
        >>> from freewheel.sharding import assign
        >>> shards = assign(None, [0, 0, 1, 1, 1, 1], strategy="stratified", workers=2)
        >>> [len(shard) for shard in shards]
        [3, 3]
    """
    sharder = sharders.create(strategy, settings)
    samples = collect(features, labels)
    return shard_samples(sharder, samples, workers, seed, speeds)


def shard_samples(
    sharder: Sharder,
    samples: Samples,
    workers: int,
    seed: int = 0,
    speeds: Sequence[float] | None = None,
) -> list[Indices]:
    """Return the shards that a sharder makes of samples; ``assign`` for things already made.

    Raises:
        ConfigError: workers, seed or speeds are out of range.
        DataError: the samples lack what the sharder needs.

    Example:
        >>> from freewheel.sharding import sharders
        >>> from freewheel.sharding.base import shard_samples
        >>> from freewheel.sharding.samples import collect
        >>> made = shard_samples(sharders.create("contiguous"), collect([[1], [2], [3]], None), 2)
        >>> [shard.tolist() for shard in made]
        [[0, 1], [2]]
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed must be an integer >= 0, got {seed!r}")
    sizes = shard_sizes(samples.num_samples, workers, speeds)
    shards = sharder.shard(samples, sizes, int(seed))
    empty = sum(len(shard) == 0 for shard in shards)
    if empty:
        warnings.warn(
            f"{empty} of {workers} shards are empty ({samples.num_samples} samples, strategy "
            f"{sharder.name!r}); use fewer workers, or let those workers idle",
            ShardingWarning,
            stacklevel=3,
        )
    return shards
