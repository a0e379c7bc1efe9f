"""From labels to strata: the groups within which samples are shared out evenly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import ConfigError, DataError, nearest
from freewheel.sharding.samples import Indices

Kind = Literal["auto", "classes", "regression", "multilabel", "none"]
KINDS = ("auto", "classes", "regression", "multilabel", "none")


@dataclass(frozen=True)
class Strata:
    """The stratum of each sample.

    Args:
        codes: stratum of each sample, shape (N,), values 0 to ``count`` - 1.
        count: number of strata.
        kind: what the labels were: classes, regression, multilabel or none.
        names: what to call each stratum in a report.
        targets: what a model would learn to predict, float64 of shape (N, L): one column per class
            is left out for classes (their codes say it); None there and without labels.
    """

    codes: NDArray[np.int32]
    count: int
    kind: str
    names: tuple[str, ...]
    targets: NDArray[np.float64] | None = None

    @property
    def sizes(self) -> Indices:
        """Samples in each stratum, shape (count,)."""
        return np.bincount(self.codes, minlength=self.count)


def make_strata(
    labels: NDArray[Any] | None, num_samples: int, kind: Kind = "auto", bins: int = 10
) -> Strata:
    """Return the strata that labels define.

    Classes are strata. Numbers to be regressed are cut at quantiles into ``bins`` strata of equal
    size. Samples with several labels are grouped by their set of labels, sets standing in order of
    their rarest label, so that dealing them in turn spreads the rare labels evenly. Without labels
    all samples are one stratum.

    ``kind="auto"`` reads a matrix as several labels, numbers that are not all whole as regression,
    and anything else as classes.

    Args:
        labels: shape (N,), or (N, L) of zeros and ones, or None.
        num_samples: N.
        kind: how to read the labels.
        bins: strata of regression labels.

    Raises:
        ConfigError: an unknown kind, or ``bins`` < 1.
        DataError: the labels are not of that kind.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.strata import make_strata
        >>> make_strata(np.array(["b", "a", "b"]), 3).codes.tolist()
        [1, 0, 1]
        >>> make_strata(np.array([0.1, 3.5, 0.2, 9.0]), 4, bins=2).codes.tolist()
        [0, 1, 0, 1]
    """
    check_kind(kind, bins)
    if labels is None or kind == "none":
        if kind not in ("auto", "none"):
            raise DataError(f"kind={kind!r} needs labels and there are none")
        return Strata(np.zeros(num_samples, np.int32), 1, "none", ("all",))
    if kind == "auto":
        kind = _guess(labels)
    if kind == "multilabel":
        return _by_label_set(labels)
    if labels.ndim != 1:
        raise DataError(
            f"kind={kind!r} needs one label per sample, got shape {labels.shape}; use "
            'kind="multilabel" for a matrix of zeros and ones'
        )
    return _by_quantile(labels, bins) if kind == "regression" else _by_class(labels)


def check_kind(kind: str, bins: int) -> None:
    """Refuse an unknown kind of labels, or fewer than one bin, with ``ConfigError``."""
    if kind not in KINDS:
        raise ConfigError(f"unknown kind of labels {kind!r}{nearest(str(kind), KINDS)}")
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise ConfigError(f"bins must be an integer >= 1, got {bins!r}")


def _guess(labels: NDArray[Any]) -> Kind:
    if labels.ndim == 2:
        return "multilabel"
    fractional = labels.dtype.kind == "f" and bool((labels != np.floor(labels)).any())
    return "regression" if fractional else "classes"


def _by_class(labels: NDArray[Any]) -> Strata:
    values, codes = np.unique(labels, return_inverse=True)
    names = tuple(str(value) for value in values.tolist())
    return Strata(codes.astype(np.int32), len(values), "classes", names)


def _by_quantile(labels: NDArray[Any], bins: int) -> Strata:
    if labels.dtype.kind not in "fiub":
        raise DataError(f"regression needs numbers as labels, got dtype {labels.dtype}")
    values = labels.astype(np.float64)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1]))
    used, codes = np.unique(np.searchsorted(edges, values, side="left"), return_inverse=True)
    bounds = np.concatenate([[-np.inf], edges, [np.inf]])
    names = tuple(f"({bounds[bin_]:.4g}, {bounds[bin_ + 1]:.4g}]" for bin_ in used.tolist())
    return Strata(codes.astype(np.int32), len(used), "regression", names, values[:, None])


def _by_label_set(labels: NDArray[Any]) -> Strata:
    if labels.ndim != 2 or not np.isin(labels, (0, 1)).all():
        raise DataError(
            "several labels per sample must be a matrix (N, L) of zeros and ones, got "
            f"shape {labels.shape}; encode each label as a column"
        )
    marks = labels.astype(bool)
    rarest_first = np.argsort(marks.sum(axis=0), kind="stable")
    packed = np.packbits(marks[:, rarest_first], axis=1)
    sets, codes = np.unique(packed, axis=0, return_inverse=True)
    names = tuple(f"labels {_members(row, rarest_first)}" for row in sets)
    targets = marks.astype(np.float64)
    return Strata(codes.reshape(-1).astype(np.int32), len(sets), "multilabel", names, targets)


def _members(packed: NDArray[np.uint8], columns: NDArray[np.intp]) -> str:
    present = np.unpackbits(packed)[: len(columns)].astype(bool)
    return "+".join(str(column) for column in sorted(columns[present].tolist())) or "none"
