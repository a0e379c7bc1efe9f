"""How alike shards are, and what that buys: labels, features, gradients, spread, worst recall.

``gradient_dispersion`` lives in ``dispersion`` (it needs torch) and the statistics of spread live
in ``spread``; both are given here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from freewheel.errors import DataError
from freewheel.sharding.dispersion import Dispersion, gradient_dispersion
from freewheel.sharding.samples import Indices, Samples, collect
from freewheel.sharding.spread import Ratio, brown_forsythe, epoch_spread, holm, sd_ratio
from freewheel.sharding.strata import Kind, make_strata

__all__ = [
    "Discrepancy",
    "Dispersion",
    "Ratio",
    "Recall",
    "brown_forsythe",
    "epoch_spread",
    "feature_discrepancy",
    "gradient_dispersion",
    "holm",
    "label_counts",
    "label_total_variation",
    "sd_ratio",
    "worst_recall",
]


def label_counts(
    shards: Sequence[Indices], labels: ArrayLike | None, kind: Kind = "auto", bins: int = 10
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return how often each label occurs in each shard, and the labels' names.

    Args:
        shards: for each worker the indices of its samples.
        labels: shape (N,) or (N, L).
        kind: how to read the labels; numbers to be regressed are counted by quantile bin, sets of
            labels by set.
        bins: quantile bins.

    Returns:
        int64, shape (workers, labels), and as many names as columns.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.metrics import label_counts
        >>> counts, names = label_counts([np.array([0, 1]), np.array([2])], ["a", "b", "b"])
        >>> counts.tolist(), names
        ([[1, 1], [0, 1]], ('a', 'b'))
    """
    samples = collect(None, labels)
    strata = make_strata(samples.labels, samples.num_samples, kind, bins)
    counts = [np.bincount(strata.codes[shard], minlength=strata.count) for shard in shards]
    return np.array(counts), strata.names


def label_total_variation(
    shards: Sequence[Indices], labels: ArrayLike, kind: Kind = "auto", bins: int = 10
) -> NDArray[np.float64]:
    """Return how far each shard's labels are from all labels: 1/2 sum_c |p_w(c) - p(c)|.

    Args:
        shards: for each worker the indices of its samples.
        labels: as for ``label_counts``.
        kind: as for ``label_counts``.
        bins: as for ``label_counts``.

    Returns:
        float64, shape (workers,), 0 (the same) to 1 (nothing in common); NaN for an empty shard.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.metrics import label_total_variation
        >>> label_total_variation([np.array([0, 1]), np.array([2, 3])], [0, 0, 1, 1]).tolist()
        [0.5, 0.5]
    """
    counts, _ = label_counts(shards, labels, kind, bins)
    overall = counts.sum(axis=0) / counts.sum()
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum(axis=1, keepdims=True)
    distances: NDArray[np.float64] = 0.5 * np.abs(shares - overall).sum(axis=1)
    return distances


@dataclass(frozen=True)
class Discrepancy:
    """How far the mean features of shards are apart, in units of the features' own variance.

    Args:
        per_worker: |m_w - m|^2 / V for each worker, V the total variance of the features (if
            standardised, the mean over features of their squared differences over their own
            variances); NaN for an empty shard.
        expected: what random shards of these sizes have on average.
    """

    per_worker: NDArray[np.float64]
    expected: float

    @property
    def mean(self) -> float:
        """Mean over the workers that have samples."""
        return float(np.nanmean(self.per_worker))


def feature_discrepancy(
    features: ArrayLike | Samples, shards: Sequence[Indices], *, standardise: bool = False
) -> Discrepancy:
    """Return how far shards' mean features are from the mean of all, in one pass.

    Random shards of n of N samples have V (1/n - 1/N) N / (N - 1) on average.

    Args:
        features: shape (N, ...), or samples that are read in batches.
        shards: for each worker the indices of its samples.
        standardise: measure every feature in its own standard deviation, for unlike units.

    Raises:
        DataError: a feature is not finite.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.metrics import feature_discrepancy
        >>> shards = [np.array([0, 1]), np.array([2, 3])]
        >>> apart = feature_discrepancy([[0.0], [0.0], [2.0], [2.0]], shards)
        >>> apart.per_worker.tolist(), round(apart.expected, 3)
        ([1.0, 1.0], 0.333)
    """
    samples = features if isinstance(features, Samples) else collect(features, None)
    total, workers = samples.num_samples, len(shards)
    member = np.full(total, -1, dtype=np.int64)
    for rank, shard in enumerate(shards):
        member[shard] = rank
    sums = np.zeros((workers + 1, samples.num_features))  # the last row: in no shard
    squares = np.zeros(samples.num_features)
    shift, first = None, 0
    for batch in samples.batches():
        shift = batch.mean(axis=0) if shift is None else shift  # keeps the sums of squares small
        centred = batch - shift
        ranks = member[first : first + len(batch)]
        marks = (ranks == np.r_[:workers, -1][:, None]).astype(np.float64)
        sums += marks @ centred
        squares += (centred**2).sum(axis=0)
        first += len(batch)
    mean = sums.sum(axis=0) / total
    variances = np.maximum(squares / total - mean**2, 0.0)
    varied = variances > 1e-12 * max(float(variances.max(initial=0.0)), 1e-300)
    unit = variances if standardise else np.full(len(variances), variances.sum() / varied.sum())
    sizes = np.array([len(shard) for shard in shards], dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = (sums[:workers] / sizes[:, None] - mean) ** 2
        per_worker = (apart[:, varied] / unit[varied]).sum(axis=1) / max(1, varied.sum())
        per_worker[sizes == 0] = np.nan
        expected = (1.0 / sizes - 1.0 / total) * total / max(1, total - 1)
    return Discrepancy(per_worker, float(np.mean(expected[sizes > 0])))


@dataclass(frozen=True)
class Recall:
    """The group that a model serves worst.

    Args:
        value: its recall.
        group: its name.
        per_group: the recall of every group.
    """

    value: float
    group: str
    per_group: dict[str, float]


def worst_recall(
    predictions: ArrayLike, labels: ArrayLike, strata: ArrayLike | None = None
) -> Recall:
    """Return the lowest share of right predictions over the classes, or over given strata.

    Args:
        predictions: predicted class of each sample, shape (N,).
        labels: true class of each sample, shape (N,).
        strata: group of each sample, such as a finer label, shape (N,); by default its class.

    Raises:
        DataError: no samples, or lengths that differ.

    Example:
        >>> from freewheel.sharding.metrics import worst_recall
        >>> worst_recall([0, 1, 1, 1], [0, 0, 1, 1])
        Recall(value=0.5, group='0', per_group={'0': 0.5, '1': 1.0})
    """
    guessed, true = np.asarray(predictions), np.asarray(labels)
    groups = true if strata is None else np.asarray(strata)
    if not len(guessed) or not guessed.shape == true.shape == groups.shape:
        raise DataError(
            "predictions, labels and strata must have the same shape (N,), N >= 1, got "
            f"{guessed.shape}, {true.shape} and {groups.shape}"
        )
    right = guessed == true
    per_group = {str(group): float(right[groups == group].mean()) for group in np.unique(groups)}
    worst = min(per_group, key=lambda group: per_group[group])
    return Recall(per_group[worst], worst, per_group)
