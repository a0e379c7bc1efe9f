"""Sharders that make workers differ, for experiments with skew: sorted by label, Dirichlet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from freewheel.errors import ConfigError, DataError
from freewheel.sharding.base import Sharder, sharders
from freewheel.sharding.samples import Indices, Samples
from freewheel.sharding.shares import cut, split_by_owner
from freewheel.sharding.strata import Kind, check_kind, make_strata


@sharders.register("label_sorted")
@dataclass(frozen=True)
class LabelSorted(Sharder):
    """Sorted by label, then cut: the worst case, for experiments with skew.

    Several labels per sample are sorted by their set of labels.

    Example:
        >>> from freewheel.sharding import assign
        >>> shards = assign(None, [1, 0, 1, 0], strategy="label_sorted", workers=2)
        >>> [shard.tolist() for shard in shards]
        [[1, 3], [0, 2]]
    """

    name: ClassVar[str] = "label_sorted"
    needs_labels: ClassVar[bool] = True

    def shard(self, samples: Samples, sizes: Indices, seed: int) -> list[Indices]:
        """Return runs of the samples sorted by label, then by position."""
        if samples.labels is None:
            raise DataError(
                'strategy "label_sorted" needs labels and there are none; use "contiguous"'
            )
        labels = samples.labels
        if labels.ndim == 2:
            labels = make_strata(labels, samples.num_samples, "multilabel").codes
        return cut(np.argsort(labels, kind="stable"), sizes)


@sharders.register("dirichlet")
@dataclass(frozen=True)
class Dirichlet(Sharder):
    """Each class is divided in proportions drawn from a Dirichlet distribution: graded skew.

    Sizes follow from the draws: they are *not* equal and take no notice of speeds beyond the mean.
    Class c goes to the workers in proportions p_c ~ Dirichlet(alpha * W * sizes / N), so that large
    ``alpha`` gives every worker its share of every class and small ``alpha`` gives each class to a
    single worker.

    Args:
        alpha: concentration, > 0; 100 is nearly even, 1 is skewed, 0.1 is nearly one class each.
        kind: how to read the labels.
        bins: quantile bins of regression labels.

    Example:
        >>> from freewheel.sharding import assign
        >>> shards = assign(None, [0, 1] * 50, strategy="dirichlet", workers=2, alpha=1.0)
        >>> sum(len(shard) for shard in shards)
        100

    References:
        Hsu, Qi, Brown, "Measuring the effects of non-identical data distribution for federated
        visual classification" (2019).
    """

    alpha: float = 1.0
    kind: Kind = "auto"
    bins: int = 10
    name: ClassVar[str] = "dirichlet"
    sized: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (isinstance(self.alpha, int | float) and 0 < self.alpha < np.inf):
            raise ConfigError(f"alpha must be positive and finite, got {self.alpha!r}")
        check_kind(self.kind, self.bins)

    def shard(self, samples: Samples, sizes: Indices, seed: int) -> list[Indices]:
        """Return each worker's random share of each stratum."""
        strata = make_strata(samples.labels, samples.num_samples, self.kind, self.bins)
        rng = np.random.default_rng(seed)
        owner = np.empty(samples.num_samples, dtype=np.int32)
        weights = self.alpha * len(sizes) * sizes / samples.num_samples
        active = np.flatnonzero(weights)
        members = np.argsort(strata.codes, kind="stable")
        for group in np.split(members, np.cumsum(strata.sizes)[:-1]):
            shares = rng.dirichlet(weights[active])
            ends = np.round(np.cumsum(shares) * len(group)).astype(np.int64)
            ends[-1] = len(group)
            owner[rng.permutation(group)] = np.repeat(active, np.diff(ends, prepend=0))
        return split_by_owner(owner, len(sizes))
