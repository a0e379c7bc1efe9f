"""The training part of a data set, as what offline sharding divides."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from freewheel.errors import DataError
from freewheel.sharding.sources import Source
from freewheel.streams.base import Split


class SplitFeatures:
    """Inputs of a split as rows of features, read in batches from the first to the last.

    Args:
        split: whose inputs are one tensor each.

    Raises:
        DataError: inputs are a tuple or dict of tensors.
    """

    def __init__(self, split: Split) -> None:
        self._split = split
        first = split.inputs(torch.arange(1))
        if not isinstance(first, Tensor):
            raise DataError(
                f"each input is a {type(first).__name__}, and shards are made of inputs that are "
                "one tensor; divide by arrays of your own: freewheel shard features.npz"
            )
        self._shape = tuple(first.shape[1:])

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self._split)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self._shape

    def batches(self, num_rows: int) -> Iterator[NDArray[Any]]:
        """Yield consecutive batches of inputs."""
        for start in range(0, len(self._split), num_rows):
            stop = min(start + num_rows, len(self._split))
            yield self._split.inputs(torch.arange(start, stop)).numpy()


def to_divide(name: str, split: Split) -> Source:
    """Return a split as a source of ``freewheel.sharding``: what a run trains on, in its order.

    Args:
        name: of the data set, for the manifest.
        split: the training part.

    Raises:
        DataError: inputs are not one tensor each.

    Example:
        >>> from freewheel.streams import load
        >>> from freewheel.streams.divided import to_divide
        >>> source = to_divide("digits", load("digits").train)
        >>> source.kind, source.features.sample_shape, len(source.labels) > 1000
        ('dataset', (1, 8, 8), True)
    """
    features = SplitFeatures(split)
    targets = split.targets(torch.arange(len(split)))
    labels = targets.numpy() if isinstance(targets, Tensor) and targets.dim() <= 2 else None
    digest = hashlib.sha256()
    for batch in features.batches(4096):
        digest.update(np.ascontiguousarray(batch).tobytes())
    if labels is not None:
        digest.update(np.ascontiguousarray(labels).tobytes())
    return Source(Path(name), "dataset", features, labels, digest=digest.hexdigest())
