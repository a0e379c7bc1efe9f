"""The same share of every cluster of every class for every worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from freewheel.errors import ConfigError
from freewheel.sharding.base import Sharder, sharders
from freewheel.sharding.clusters import ClassClusters, Method
from freewheel.sharding.embedding import FeatureFunction, Projection, choose_rows, prepare
from freewheel.sharding.samples import Indices, Samples
from freewheel.sharding.shares import deal, split_by_owner
from freewheel.sharding.strata import Kind, check_kind, make_strata


@sharders.register("class_cluster")
@dataclass(frozen=True)
class ClassCluster(Sharder):
    """Clusters within each class are found, and dealt round robin: hidden strata are shared too.

    Principal components and clusters are found on ``fit_rows`` samples; every sample then goes to
    the nearest cluster of its class. Sizes differ by at most one between equal workers, and so do
    the counts of every class and every cluster. O(N D K) time for K components, two passes.

    Args:
        clusters: how many in each class, or ``"auto"`` for the best silhouette.
        max_clusters: the most that ``"auto"`` tries.
        method: ``"kmeans"``, or ``"mixture"`` of Gaussians.
        embedding: ``"pca"``, ``"raw"``, or a function from a batch to its features.
        components: principal components at most, or the share of variance to keep.
        standardise: bring every feature to unit variance first.
        kind: how to read the labels.
        bins: quantile bins of regression labels.
        fit_rows: samples that components and clusters are found on.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding import assign
        >>> features = np.array([0.0, 9.0, 0.1, 9.1, 0.2, 9.2, 0.3, 9.3])[:, None]
        >>> shards = assign(features, [0] * 8, "class_cluster", workers=2, clusters=2)
        >>> [int((features[shard] > 5).sum()) for shard in shards]
        [2, 2]

    References:
        Sohoni, Dunnmon, Angus, Gu, Ré, "No subclass left behind" (2020).
    """

    clusters: int | str = "auto"
    max_clusters: int = 8
    method: Method = "kmeans"
    embedding: str | FeatureFunction = "pca"
    components: int | float = 50
    standardise: bool = False
    kind: Kind = "auto"
    bins: int = 10
    fit_rows: int = 20_000
    name: ClassVar[str] = "class_cluster"
    reads_features: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_kind(self.kind, self.bins)
        ClassClusters(self.clusters, self.max_clusters, self.method)
        Projection("pca" if callable(self.embedding) else self.embedding, self.components)
        if self.fit_rows < 2:
            raise ConfigError(f"fit_rows must be >= 2, got {self.fit_rows}")

    def shard(self, samples: Samples, sizes: Indices, seed: int) -> list[Indices]:
        """Return each worker's share of each cluster of each class."""
        rng = np.random.default_rng(seed)
        strata = make_strata(samples.labels, samples.num_samples, self.kind, self.bins)
        samples, embedding = prepare(samples, self.embedding)
        chosen = choose_rows(samples, strata, self.fit_rows, rng)
        rows = samples.rows(chosen)
        project = Projection(embedding, self.components, self.standardise, seed).fit(rows)
        finder = ClassClusters(self.clusters, self.max_clusters, self.method, seed=seed)
        finder.fit(project(rows), strata.codes[chosen], strata.count)
        clusters = np.empty(samples.num_samples, dtype=np.int32)
        first = 0
        for batch in samples.batches():
            part = slice(first, first + len(batch))
            clusters[part] = finder(project(batch), strata.codes[part])
            first += len(batch)
        order = np.lexsort((rng.random(samples.num_samples), clusters, strata.codes))
        return split_by_owner(deal(order, sizes), len(sizes))
