"""How a data set is cut into train, validation and test parts."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from freewheel.errors import ConfigError, DataError
from freewheel.streams.base import Split, SubsetSplit

#: Which samples validate and test is the same in every run, whatever the run's seed.
PARTS_SEED = 20240607


def carve(num_samples: int, sizes: tuple[int, ...]) -> list[Tensor]:
    """Draw disjoint parts of so many samples each, always the same ones.

    Args:
        num_samples: how many there are.
        sizes: of the parts to draw; what is left is the last part returned.

    Returns:
        int64 sample numbers of each part and of the rest, each in ascending order.

    Raises:
        DataError: the parts leave nothing over.

    Example:
        >>> from freewheel.streams.parts import carve
        >>> [len(part) for part in carve(10, (2, 1))]
        [2, 1, 7]
    """
    if sum(sizes) >= num_samples:
        raise DataError(
            f"{num_samples} samples cannot give up {' + '.join(map(str, sizes))} for validation "
            "and test and leave any to train on: more data is needed"
        )
    order = np.random.default_rng(PARTS_SEED).permutation(num_samples)
    pieces = np.split(order, np.cumsum(sizes))
    return [torch.from_numpy(np.sort(piece)) for piece in pieces]


def limited(split: Split, limit: int | None, seed: int) -> Split:
    """Keep ``limit`` samples of a split, drawn at random so that sorted data stays mixed.

    Args:
        split: the samples to choose from.
        limit: how many to keep; None for all.
        seed: which ones, at least 0.

    Returns:
        The split itself, or that subset in the original order.

    Raises:
        ConfigError: the limit is below 1 or above the number of samples.

    Example:
        >>> import torch
        >>> from freewheel.streams.base import TensorSplit
        >>> from freewheel.streams.parts import limited
        >>> len(limited(TensorSplit(torch.arange(9), torch.arange(9)), limit=4, seed=0))
        4
    """
    if limit is None:
        return split
    check_limit(limit, len(split))
    order = np.random.default_rng([PARTS_SEED, seed]).permutation(len(split))
    return SubsetSplit(split, torch.from_numpy(np.sort(order[:limit])))


def check_limit(limit: int, num_samples: int) -> None:
    """Refuse a limit below 1 or above the number of samples.

    Raises:
        ConfigError: it is.
    """
    if limit < 1:
        raise ConfigError(f"limit must be >= 1, got {limit}; leave it out to train on everything")
    if limit > num_samples:
        raise ConfigError(
            f"limit is {limit}, but there are only {num_samples} samples to train on; "
            "lower it, or leave it out to train on everything"
        )
