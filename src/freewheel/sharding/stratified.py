"""The same share of every class for every worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from freewheel.sharding.base import Sharder, sharders
from freewheel.sharding.samples import Indices, Samples
from freewheel.sharding.shares import deal, split_by_owner
from freewheel.sharding.strata import Kind, check_kind, make_strata


@sharders.register("stratified")
@dataclass(frozen=True)
class Stratified(Sharder):
    """Round robin within each class, going on from class to class where the last one ended.

    Both the shards' sizes and every class's counts then differ by at most one between equal workers
    (by at most two from their share between unequal ones). Numbers to be regressed are cut into
    quantile bins, sets of labels stand in order of their rarest label, and without labels this is
    ``random``. O(N log N) time, 12 bytes a sample.

    Args:
        kind: how to read the labels: auto, classes, regression, multilabel or none.
        bins: quantile bins of regression labels.
        shuffle: put each class in random order first. False takes file order, as published: the
            shards are then the same for every seed.

    Example:
        >>> from freewheel.sharding import assign
        >>> labels = [0, 0, 1, 1]
        >>> [s.tolist() for s in assign(None, labels, "stratified", workers=2, shuffle=False)]
        [[0, 2], [1, 3]]

    References:
        Provatas, Konstantinou, Koziris, IEEE Big Data 2021, algorithm 1,
        doi 10.1109/BigData52589.2021.9672001.
    """

    kind: Kind = "auto"
    bins: int = 10
    shuffle: bool = True
    name: ClassVar[str] = "stratified"

    def __post_init__(self) -> None:
        check_kind(self.kind, self.bins)

    def shard(self, samples: Samples, sizes: Indices, seed: int) -> list[Indices]:
        """Return each worker's share of each stratum."""
        strata = make_strata(samples.labels, samples.num_samples, self.kind, self.bins)
        order = np.arange(samples.num_samples)
        if self.shuffle:
            order = np.random.default_rng(seed).permutation(order)
        order = order[np.argsort(strata.codes[order], kind="stable")]
        return split_by_owner(deal(order, sizes), len(sizes))
