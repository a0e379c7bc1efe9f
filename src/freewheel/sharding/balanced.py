"""Vector balancing: every worker's sums of features and of gradients agree, class by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import ConfigError
from freewheel.sharding.balance import Balancer, Vectors, to_grid
from freewheel.sharding.base import Sharder, sharders
from freewheel.sharding.clusters import ClassClusters
from freewheel.sharding.embedding import FeatureFunction, Projection, choose_rows, prepare
from freewheel.sharding.samples import Indices, Samples
from freewheel.sharding.shares import deal, split_by_owner
from freewheel.sharding.strata import Kind, Strata, check_kind, make_strata
from freewheel.sharding.surrogate import Surrogate

#: Rows that are exchanged among themselves before the next are read. A constant, not a setting of
#: the source, so that the shards do not depend on how the features are stored.
CHUNK_ROWS = 1 << 13
#: With more classes than this no network is trained: its outputs would not fit.
MAX_CLASSES = 2000
#: Values in the sums that are balanced: 512 MB.
MAX_SUMS = 1 << 26

Matrix = NDArray[np.float64]


@sharders.register("balanced")
@dataclass(frozen=True)
class Balanced(Sharder):
    """Dealt like ``class_cluster``, then samples of one class are exchanged between workers.

    Exchanges lower the distance between workers of, class by class, the means of the principal
    components and of small networks' errors and activations, and, over all classes, the mean
    gradients of those networks (see ``surrogate`` and ``balance``). ``networks`` of them, unlike in
    their starting points, are trained for a few epochs on ``fit_rows`` samples and looked at after
    each of ``epochs``, so that shards agree both early and late in training. Sizes differ by at
    most one between equal workers, and so do the counts of every class. One more pass over the
    features than ``class_cluster``; O(N (D K + sweeps W (P + Q))) time for P + Q balanced values a
    sample; memory for one chunk of 8,192 samples and for the rows that are fitted on.

    Args:
        components: principal components.
        networks: how many small networks.
        epochs: when each is looked at; empty for no network. None is trained for more than 2,000
            classes.
        hidden: units of the network.
        sketch: values of each sketched gradient.
        sweeps: how often each sample is looked at.
        clusters: of each class at the start.
        embedding: ``"pca"``, ``"raw"``, or a function from a batch to its features.
        standardise: bring every feature to unit variance first.
        kind: how to read the labels.
        bins: quantile bins of regression labels.
        fit_rows: samples that components, clusters and network are found on.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding import assign
        >>> features = np.array([[1.0], [2.0], [3.0], [4.0]])
        >>> shards = assign(features, None, "balanced", workers=2)
        >>> sorted(float(features[shard].mean()) for shard in shards)
        [2.5, 2.5]

    References:
        Lu, Guo, De Sa, "GraB: finding provably better data permutations than random reshuffling"
        (2022); Chen, Welling, Smola, "Super-samples from kernel herding" (2010).
    """

    components: int | float = 100
    networks: int = 3
    epochs: tuple[int, ...] = (2, 6, 15)
    hidden: int = 64
    sketch: int = 128
    sweeps: int = 3
    clusters: int | str = 4
    embedding: str | FeatureFunction = "pca"
    standardise: bool = False
    kind: Kind = "auto"
    bins: int = 10
    fit_rows: int = 20_000
    name: ClassVar[str] = "balanced"
    reads_features: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_kind(self.kind, self.bins)
        ClassClusters(self.clusters)
        Projection("pca" if callable(self.embedding) else self.embedding, self.components)
        for name in ("networks", "hidden", "sketch", "sweeps", "fit_rows"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} must be an integer >= 1, got {value!r}")
        if any(epoch < 1 for epoch in self.epochs):
            raise ConfigError(f"epochs must be integers >= 1, got {list(self.epochs)}")

    def shard(self, samples: Samples, sizes: Indices, seed: int) -> list[Indices]:
        """Return shards whose sums of features and gradients agree."""
        rng = np.random.default_rng(seed)
        strata = make_strata(samples.labels, samples.num_samples, self.kind, self.bins)
        samples, embedding = prepare(samples, self.embedding)
        chosen = choose_rows(samples, strata, self.fit_rows, rng)
        measure = _Measure(self, embedding, strata, seed).fit(samples.rows(chosen), chosen)
        num_sums = strata.count * len(sizes) * measure.num_own
        if num_sums > MAX_SUMS:
            raise ConfigError(
                f"{strata.count} classes x {len(sizes)} workers x {measure.num_own} balanced "
                f"values are {num_sums} sums, and {MAX_SUMS} are allowed; if the labels are "
                'numbers to be regressed, set kind="regression", else use strategy="stratified"'
            )
        owner = self._start(samples, strata, sizes, measure)
        balancer = Balancer(sizes, strata.count, measure.num_own, measure.num_shared)
        first = 0
        for batch in samples.batches(CHUNK_ROWS):
            part = slice(first, first + len(batch))
            balancer.balance(measure(batch, part), owner[part], self.sweeps, rng)
            first += len(batch)
        return split_by_owner(owner, len(sizes))

    def _start(
        self, samples: Samples, strata: Strata, sizes: Indices, measure: _Measure
    ) -> NDArray[np.int32]:
        # in file order within a cluster, so that every chunk is dealt in proportion too
        if self.clusters == 1:
            return deal(np.argsort(strata.codes, kind="stable"), sizes)
        clusters, first = np.empty(samples.num_samples, dtype=np.int32), 0
        for batch in samples.batches(CHUNK_ROWS):
            part = slice(first, first + len(batch))
            clusters[part] = measure.clusters(measure.project(batch), strata.codes[part])
            first += len(batch)
        return deal(np.lexsort((clusters, strata.codes)), sizes)


class _Measure:
    """Turns features into the vectors to be balanced, in a scale found once."""

    def __init__(self, settings: Balanced, embedding: str, strata: Strata, seed: int) -> None:
        self._settings, self._strata = settings, strata
        self.project = Projection(embedding, settings.components, settings.standardise, seed)
        self.clusters = ClassClusters(settings.clusters, seed=seed)
        learns = settings.epochs and (strata.targets is not None or 1 < strata.count <= MAX_CLASSES)
        self._surrogates = [
            Surrogate(settings.epochs, settings.hidden, settings.sketch, 1000 * seed + number)
            for number in range(settings.networks if learns else 0)
        ]

    def fit(self, rows: Matrix, chosen: Indices) -> _Measure:
        scores = self.project.fit(rows)(rows)
        codes = self._strata.codes[chosen]
        self.clusters.fit(scores, codes, self._strata.count)
        for surrogate in self._surrogates:
            surrogate.fit(scores, self._strata, chosen)
        part_of_them = slice(None, None, max(1, len(chosen) // CHUNK_ROWS))  # to hold one chunk
        codes = codes[part_of_them]
        own, shared = self._parts(scores[part_of_them], chosen[part_of_them])
        counts = np.bincount(codes, minlength=self._strata.count)[:, None]
        self._means, self._own_scales = [], []
        for part in own:
            sums = np.zeros((self._strata.count, part.shape[1]))
            np.add.at(sums, codes, part)
            means = np.where(counts > 0, sums / np.maximum(counts, 1), part.mean(axis=0))
            self._means.append(means)
            self._own_scales.append(_scale(part - means[codes]))
        self._shared_means = [part.mean(axis=0) for part in shared]
        self._shared_scales = [_scale(part - part.mean(axis=0)) for part in shared]
        self.num_own = sum(part.shape[1] for part in own)
        self.num_shared = sum(part.shape[1] for part in shared)
        return self

    def __call__(self, batch: Matrix, rows: slice) -> Vectors:
        codes = self._strata.codes[rows]
        own, shared = self._parts(self.project(batch), rows)
        # the components weigh as much as all looks at the network together, for each of its parts
        looks = np.sqrt(max(1, len(self._settings.epochs) * len(self._surrogates)))
        for index, part in enumerate(own):
            part -= self._means[index][codes]
            part *= self._own_scales[index] / (looks if index else 1.0)
        for index, part in enumerate(shared):
            part -= self._shared_means[index]
            part *= self._shared_scales[index] / looks
        return Vectors(_joined(own, len(codes)), _joined(shared, len(codes)), codes)

    def _parts(self, scores: Matrix, rows: Any) -> tuple[list[Matrix], list[Matrix]]:
        own, shared = [scores], []
        for surrogate in self._surrogates:
            within, over_all = surrogate(scores, self._strata, rows)
            own += within
            shared += over_all
        return own, shared


def _joined(parts: list[Matrix], num_rows: int) -> Matrix:
    """Put parts side by side on the grid, giving up each one when it is copied."""
    joined = np.empty((num_rows, sum(part.shape[1] for part in parts)))
    end = joined.shape[1]
    while parts:
        part = parts.pop()
        joined[:, end - part.shape[1] : end] = to_grid(part)
        end -= part.shape[1]
    return joined


def _scale(centred: Matrix) -> float:
    spread = float(np.sqrt((centred**2).sum(axis=1).mean()))
    return 1.0 / spread if spread > 0 else 1.0
