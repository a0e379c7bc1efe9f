"""The samples that are to be divided: features read in batches, labels held in memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from freewheel.errors import DataError

Indices = NDArray[np.int64]
Floats = NDArray[np.floating[Any]]

#: Values held by one batch of features: a million, 8 MB as float64.
BATCH_VALUES = 1 << 20
#: Values held by a sample of rows that a sharder fits on: 128 MB as float64.
FIT_VALUES = 1 << 24


class Features(Protocol):
    """Where rows of features come from: an array, a file, or a model's outputs.

    Every call of ``batches`` reads from the first row to the last, so nothing larger than a batch
    has to be in memory.
    """

    @property
    def num_samples(self) -> int:
        """Number of rows."""
        ...

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        ...

    def batches(self, num_rows: int) -> Iterator[NDArray[Any]]:
        """Yield consecutive batches (B, *sample_shape), B = ``num_rows`` except in the last."""
        ...


class ArrayFeatures:
    """Rows of an array in memory, or of a memory-mapped one.

    Args:
        values: shape (N, ...), numeric; anything that ``numpy.asarray`` takes.

    Raises:
        DataError: it is not numeric or has no rows to count.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.samples import ArrayFeatures
        >>> rows = ArrayFeatures(np.zeros((5, 2, 3)))
        >>> [batch.shape for batch in rows.batches(4)]
        [(4, 2, 3), (1, 2, 3)]
    """

    def __init__(self, values: ArrayLike) -> None:
        try:
            array = np.asarray(values)
        except (ValueError, TypeError, RuntimeError) as error:  # torch raises the last two
            raise DataError(
                f"features do not form an array: {error}; every sample must have the same shape, "
                "and a tensor must be on the CPU and detached"
            ) from error
        if array.ndim == 0:
            raise DataError(
                f"features must have one row per sample, got a single {type(values).__name__}; "
                "make a sparse matrix dense, or give its rows in batches (samples.Features)"
            )
        if array.dtype.kind not in "fiub":
            raise DataError(
                f"features must be real numbers, got dtype {array.dtype}; encode text and "
                "categories as numbers first"
            )
        self.values = array

    @property
    def num_samples(self) -> int:
        """Number of rows."""
        return len(self.values)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self.values.shape[1:]

    def batches(self, num_rows: int) -> Iterator[NDArray[Any]]:
        """Yield consecutive slices of the array."""
        for first in range(0, self.num_samples, num_rows):
            yield self.values[first : first + num_rows]


@dataclass(frozen=True)
class Samples:
    """What a sharder is given.

    Args:
        num_samples: N.
        labels: shape (N,) or (N, L), or None where there are none.
        features: rows of features, or None where there are none.

    Example:
        >>> from freewheel.sharding.samples import Samples, collect
        >>> samples = collect([[0.0], [1.0]], ["a", "b"])
        >>> samples.num_samples, [batch.tolist() for batch in samples.batches()]
        (2, [[[0.0], [1.0]]])
    """

    num_samples: int
    labels: NDArray[Any] | None = None
    features: Features | None = None

    @property
    def num_features(self) -> int:
        """Values in a row of features; 0 where there are none."""
        return 0 if self.features is None else math.prod(self.features.sample_shape)

    @property
    def batch_rows(self) -> int:
        """Rows of a batch that holds about a million values, at most 65,536."""
        return max(1, min(1 << 16, BATCH_VALUES // max(1, self.num_features)))

    def batches(self, num_rows: int | None = None) -> Iterator[NDArray[np.float64]]:
        """Yield the features from first to last in flattened batches (B, D), checked to be finite.

        Args:
            num_rows: B; by default ``batch_rows``.

        Raises:
            DataError: there are no features, or a value is NaN or infinite.
        """
        if self.features is None or self.num_features == 0:
            raise DataError(
                "this strategy reads features and there are none; pass features, or use "
                'strategy="stratified"'
            )
        first = 0
        for batch in self.features.batches(num_rows or self.batch_rows):
            values = np.asarray(batch, dtype=np.float64).reshape(len(batch), -1)
            check_finite(values, first)
            yield values
            first += len(values)
        if first != self.num_samples:
            raise DataError(
                f"the features ended after {first} of {self.num_samples} samples; a source must "
                "give the same rows each time it is read"
            )

    def rows(self, indices: Indices) -> NDArray[np.float64]:
        """Return the features of some samples, shape (len(indices), D), by one pass over all.

        Args:
            indices: ascending, without repeats.
        """
        if isinstance(self.features, ArrayFeatures) and self.num_features:
            values = self.features.values[indices].reshape(len(indices), -1).astype(np.float64)
            check_finite(values, indices)
            return values
        found, first = [], 0
        for batch in self.batches():
            low, high = np.searchsorted(indices, [first, first + len(batch)])
            found.append(batch[indices[low:high] - first])
            first += len(batch)
        return np.concatenate(found)


def check_finite(values: NDArray[np.float64], first: int | Indices) -> None:
    """Refuse NaN and infinities, naming the sample.

    Args:
        values: features, shape (B, D).
        first: number of the first sample, or the numbers of all of them.

    Raises:
        DataError: a value is not finite.
    """
    finite = np.isfinite(values)
    if finite.all():
        return
    row, column = np.argwhere(~finite)[0]
    sample = first + row if isinstance(first, int) else first[row]
    raise DataError(
        f"feature {column} of sample {sample} is {values[row, column]}; every feature must be "
        "finite: fill or drop such samples first"
    )


def collect(features: ArrayLike | Features | None, labels: ArrayLike | None) -> Samples:
    """Return checked samples.

    Args:
        features: shape (N, ...), or an object with the methods of ``Features``, or None.
        labels: shape (N,) or (N, L), or None.

    Raises:
        DataError: there are no samples, the lengths differ, or a label is NaN.

    Example:
        >>> from freewheel.sharding.samples import collect
        >>> collect(None, [0, 1, 1]).num_samples
        3
    """
    rows = _features(features)
    marks = None if labels is None else _labels(labels)
    known = [] if rows is None else [rows.num_samples]
    known += [] if marks is None else [len(marks)]
    if not known:
        raise DataError("neither features nor labels were given; pass one of them at least")
    if len(set(known)) > 1:
        raise DataError(
            f"there are {known[0]} samples but {known[1]} labels; there must be one label per "
            "sample"
        )
    if known[0] == 0:
        raise DataError("the source is empty: there is no sample to assign")
    return Samples(known[0], marks, rows)


def _features(features: ArrayLike | Features | None) -> Features | None:
    if features is None:
        return None
    if hasattr(features, "batches") and hasattr(features, "num_samples"):
        source: Features = features  # type: ignore[assignment]  # the attributes were looked at
        return source
    return ArrayFeatures(features)


def _labels(labels: ArrayLike) -> NDArray[Any]:
    try:
        array = np.asarray(labels)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(f"labels do not form an array: {error}") from error
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2):
        raise DataError(f"labels must have shape (N,) or (N, L), got {array.shape}")
    if array.dtype.kind == "O":
        array = _texts(array)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise DataError(f"label of sample {row} is {array[row]}; every label must be finite")
    if array.dtype.kind not in "fiubUS":
        raise DataError(f"labels must be numbers, booleans or text, got dtype {array.dtype}")
    return array


def _texts(array: NDArray[Any]) -> NDArray[Any]:
    values: Sequence[Any] = array.ravel().tolist()
    for row, value in enumerate(values):
        if value is None or (isinstance(value, float) and value != value):
            raise DataError(f"label of sample {row} is {value}; every sample needs a label")
    if any(isinstance(value, str) for value in values):
        return np.array([str(value) for value in values]).reshape(array.shape)
    return np.array(values).reshape(array.shape)
