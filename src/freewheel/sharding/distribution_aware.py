"""The published distribution-aware sharding: clusters of the whole set, labels ignored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from freewheel.errors import ConfigError
from freewheel.sharding.base import Sharder, sharders
from freewheel.sharding.clusters import ClassClusters
from freewheel.sharding.embedding import FeatureFunction, Projection, choose_rows, prepare
from freewheel.sharding.samples import Indices, Samples
from freewheel.sharding.shares import deal, shard_sizes
from freewheel.sharding.strata import make_strata

#: All samples are clustered, as published, where their features hold no more values than this.
FIT_VALUES = 1 << 26


@sharders.register("distribution_aware")
@dataclass(frozen=True)
class DistributionAware(Sharder):
    """Principal components, k-means over the whole set, round robin within each cluster.

    As published, and so with its properties: labels decide nothing but the default number of
    clusters; point i of a cluster, in file order, goes to worker i mod W, so that shards differ by
    up to one sample per cluster; and a *sparse neighbourhood*, a cluster of at most W points, is
    **copied to all workers**, so that its samples are used W times. It is deterministic but for the
    starting points of k-means.

    Between unequal workers the points of a cluster are shared in proportion to the sizes asked for.
    O(N D K) time per iteration of k-means, which sees all samples up to ``fit_rows``.

    Args:
        clusters: k; 0 means twice the number of classes (20 without classes).
        components: principal components; the publication gives no number, "minimal loss".
        embedding: ``"pca"``, ``"raw"``, or a function from a batch to its features.
        standardise: bring every feature to unit variance first.
        max_iter: iterations of k-means.
        fit_rows: samples that components and clusters are found on; all, up to 200,000 and up to
            64 million values (512 MB).

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding import assign
        >>> features = np.array([0.0, 9.0, 0.1, 9.1, 0.2, 9.2])[:, None]
        >>> shards = assign(features, None, "distribution_aware", workers=2, clusters=2)
        >>> sorted(np.concatenate(shards).tolist())
        [0, 1, 2, 3, 4, 5]

    References:
        Provatas, Konstantinou, Koziris, IEEE Big Data 2021, algorithm 2,
        doi 10.1109/BigData52589.2021.9672001.
    """

    clusters: int = 0
    components: int | float = 0.95
    embedding: str | FeatureFunction = "pca"
    standardise: bool = False
    max_iter: int = 150
    fit_rows: int = 200_000
    name: ClassVar[str] = "distribution_aware"
    exact: ClassVar[bool] = False
    sized: ClassVar[bool] = False
    reads_features: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.clusters, bool) or not isinstance(self.clusters, int):
            raise ConfigError(f"clusters must be an integer >= 0, got {self.clusters!r}")
        if self.clusters < 0 or self.max_iter < 1 or self.fit_rows < 2:
            raise ConfigError(
                f"clusters must be >= 0, max_iter >= 1 and fit_rows >= 2, got {self.clusters}, "
                f"{self.max_iter} and {self.fit_rows}"
            )
        Projection("pca" if callable(self.embedding) else self.embedding, self.components)

    def shard(self, samples: Samples, sizes: Indices, seed: int) -> list[Indices]:
        """Return each worker's share of each cluster, and a copy of each sparse neighbourhood."""
        strata = make_strata(samples.labels, samples.num_samples)
        k = self.clusters or (2 * strata.count if strata.kind == "classes" else 20)
        samples, embedding = prepare(samples, self.embedding)
        whole = make_strata(None, samples.num_samples)
        rng = np.random.default_rng(seed)
        chosen = choose_rows(samples, whole, self.fit_rows, rng, max_values=FIT_VALUES)
        rows = samples.rows(chosen)
        project = Projection(embedding, self.components, self.standardise, seed).fit(rows)
        finder = ClassClusters(k, seed=seed, max_iter=self.max_iter)
        finder.fit(project(rows), whole.codes[chosen], 1)
        codes = np.concatenate(
            [finder(project(batch), np.zeros(len(batch), np.int32)) for batch in samples.batches()]
        )
        return share_clusters(codes, finder.count, sizes)


def share_clusters(codes: Indices, num_clusters: int, sizes: Indices) -> list[Indices]:
    """Return the shards of algorithm 2, from the cluster of each sample.

    Args:
        codes: cluster of each sample, shape (N,).
        num_clusters: how many clusters there are.
        sizes: samples per worker, as shares.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.distribution_aware import share_clusters
        >>> codes = np.array([0, 0, 0, 0, 1])
        >>> [shard.tolist() for shard in share_clusters(codes, 2, np.array([3, 2]))]
        [[0, 2, 4], [1, 3, 4]]
    """
    workers = len(sizes)
    even = np.array_equal(sizes, shard_sizes(int(sizes.sum()), workers))
    shards: list[list[Indices]] = [[] for _ in range(workers)]
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=num_clusters))[:-1]
    for members in np.split(order, ends):
        if len(members) <= workers:
            owners = [members] * workers
        else:
            shares = shard_sizes(len(members), workers, None if even else (sizes + 1e-9).tolist())
            owner = deal(np.arange(len(members)), shares)
            owners = [members[owner == worker] for worker in range(workers)]
        for worker in range(workers):
            shards[worker].append(owners[worker])
    return [np.sort(np.concatenate(parts)) for parts in shards]
