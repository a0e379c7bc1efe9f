"""What of a sample is compared: raw features, principal components, or a model's features.

Everything here works on batches: features that do not fit in memory are read a few times instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import ConfigError, DataError, nearest
from freewheel.sharding.samples import FIT_VALUES, Features, Indices, Samples
from freewheel.sharding.strata import Strata

#: Maps a batch (B, *sample_shape) to features (B, F).
FeatureFunction = Callable[[NDArray[Any]], NDArray[Any]]

EMBEDDINGS = ("pca", "raw")


class MappedFeatures:
    """The outputs of a function, such as the last hidden layer of a model, as features.

    Nothing is kept: each pass calls the function again on each batch.

    Args:
        features: what the function is given.
        function: maps a batch (B, *sample_shape) to an array (B, F).

    Raises:
        DataError: the function does not return one row per sample.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.embedding import MappedFeatures
        >>> from freewheel.sharding.samples import ArrayFeatures
        >>> rows = ArrayFeatures(np.ones((3, 2)))
        >>> [batch.tolist() for batch in MappedFeatures(rows, lambda x: 2 * x).batches(2)]
        [[[2.0, 2.0], [2.0, 2.0]], [[2.0, 2.0]]]
    """

    def __init__(self, features: Features, function: FeatureFunction) -> None:
        self._features = features
        self._function = function
        first = next(iter(features.batches(1)), None)
        if first is None:
            raise DataError("the source is empty: there is no sample to assign")
        self._shape = self._apply(first).shape[1:]

    @property
    def num_samples(self) -> int:
        """Number of rows."""
        return self._features.num_samples

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of what the function makes of one sample."""
        return self._shape

    def batches(self, num_rows: int) -> Iterator[NDArray[Any]]:
        """Yield the function's outputs for consecutive batches."""
        for batch in self._features.batches(num_rows):
            yield self._apply(batch)

    def _apply(self, batch: NDArray[Any]) -> NDArray[Any]:
        made = np.asarray(self._function(batch))
        if made.ndim < 1 or len(made) != len(batch):
            raise DataError(
                f"the embedding returned shape {made.shape} for a batch of {len(batch)} samples; "
                "it must return one row per sample"
            )
        return made.reshape(len(batch), -1)


class Projection:
    """Principal components of the features, or the features themselves, in a fixed scale.

    Args:
        embedding: ``"pca"`` or ``"raw"``.
        components: how many principal components at most; below 1, the share of variance to keep.
        standardise: bring every feature to unit variance first, for features of unlike units.
        seed: of the randomised solver that large inputs are decomposed with.

    Raises:
        ConfigError: an unknown embedding, or components that are neither a count nor a share.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.embedding import Projection
        >>> plane = Projection("pca", components=1).fit(np.array([[0.0, 0], [1, 1], [2, 2]]))
        >>> np.abs(plane(np.array([[2.0, 2.0]]))).round(3).tolist()
        [[1.414]]
    """

    def __init__(
        self,
        embedding: str = "pca",
        components: int | float = 50,
        standardise: bool = False,
        seed: int = 0,
    ) -> None:
        if embedding not in EMBEDDINGS:
            raise ConfigError(
                f"unknown embedding {embedding!r}{nearest(str(embedding), EMBEDDINGS)}; a "
                "function from a batch to its features is one too"
            )
        share = isinstance(components, float) and 0 < components < 1
        count = isinstance(components, int) and not isinstance(components, bool) and components >= 1
        if not (share or count):
            raise ConfigError(
                "components must be an integer >= 1, or a share of the variance between 0 and 1, "
                f"got {components!r}"
            )
        self._embedding, self._components = embedding, components
        self._standardise, self._seed = standardise, seed

    def fit(self, rows: NDArray[np.float64]) -> Projection:
        """Find the components of these rows, shape (R, D), and return self."""
        from sklearn.decomposition import PCA  # a second to import, and not every sharder needs it

        self._shift = rows.mean(axis=0)
        deviation = rows.std(axis=0) if self._standardise else np.ones(rows.shape[1])
        self._scale = np.where(deviation > 0, deviation, 1.0)
        self._basis: NDArray[np.float64] | None = None
        limit = min(rows.shape)
        if self._embedding == "pca" and limit > 1 and np.ptp(rows, axis=0).any():
            wanted = self._components
            kept = min(wanted, limit) if isinstance(wanted, int) else wanted
            model = PCA(n_components=kept, svd_solver="auto", random_state=self._seed)
            self._basis = model.fit((rows - self._shift) / self._scale).components_.T
        return self

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the scores of rows (B, D), shape (B, components)."""
        centred: NDArray[np.float64] = (rows - self._shift) / self._scale
        return centred if self._basis is None else centred @ self._basis


def prepare(samples: Samples, embedding: str | FeatureFunction) -> tuple[Samples, str]:
    """Return the samples with a model's features in place of their own, and what to do with them.

    Args:
        samples: with features.
        embedding: ``"pca"``, ``"raw"``, or a function; the components of its output are taken.

    Example:
        >>> from freewheel.sharding.embedding import prepare
        >>> from freewheel.sharding.samples import collect
        >>> mapped, how = prepare(collect([[1.0], [2.0]], None), lambda batch: batch * 10)
        >>> how, next(mapped.batches()).tolist()
        ('pca', [[10.0], [20.0]])
    """
    if not callable(embedding) or samples.features is None:
        return samples, str(embedding)
    mapped = MappedFeatures(samples.features, embedding)
    return Samples(samples.num_samples, samples.labels, mapped), "pca"


def choose_rows(
    samples: Samples,
    strata: Strata,
    limit: int,
    rng: np.random.Generator,
    least: int = 50,
    max_values: int = FIT_VALUES,
) -> Indices:
    """Return the samples that a sharder fits on: at random, but no stratum left out.

    Args:
        samples: all of them.
        strata: their strata.
        limit: how many at most; fewer where they would hold more than ``max_values``.
        rng: source of randomness.
        least: every stratum gives this many, or all it has, before the rest is shared.
        max_values: features of all these samples together.

    Returns:
        Ascending indices. More than ``limit`` where there are very many strata.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.embedding import choose_rows
        >>> from freewheel.sharding.samples import collect
        >>> from freewheel.sharding.strata import make_strata
        >>> labels = np.array([0] * 96 + [1] * 4)
        >>> samples = collect(np.zeros((100, 1)), labels)
        >>> rng = np.random.default_rng(0)
        >>> chosen = choose_rows(samples, make_strata(labels, 100), 20, rng, least=4)
        >>> len(chosen), int((chosen >= 96).sum())
        (20, 4)
    """
    limit = max(1, min(limit, max_values // max(1, samples.num_features)))
    if samples.num_samples <= limit:
        return np.arange(samples.num_samples)
    sizes = strata.sizes
    least = min(least, max(1, limit // strata.count))
    rest = sizes - np.minimum(sizes, least)
    spare = max(0, limit - int(np.minimum(sizes, least).sum()))
    quota = np.minimum(sizes, least) + np.floor(rest * (spare / max(1, rest.sum()))).astype(
        np.int64
    )
    order = np.lexsort((rng.random(samples.num_samples), strata.codes))
    place = np.arange(samples.num_samples) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.sort(order[place < np.repeat(quota, sizes)])
