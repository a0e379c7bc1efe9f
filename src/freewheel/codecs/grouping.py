"""Which values of a tensor share a scale, or compete for the same places."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from freewheel.errors import ConfigError, nearest

#: ``"sample"``, ``"row"``, ``"tensor"``, or the length of blocks of consecutive values.
Per = str | int

_NAMES = ("sample", "row", "tensor")


def check_per(per: Per) -> Per:
    """Return ``per`` if it names a grouping.

    Raises:
        ConfigError: it does not.
    """
    if isinstance(per, str) and per not in _NAMES:
        raise ConfigError(f"per is unknown: {per!r}{nearest(per, _NAMES)}, or a block length")
    if isinstance(per, bool) or (isinstance(per, int) and per < 1):
        raise ConfigError(
            f"per must be a block length >= 1 or one of {', '.join(_NAMES)}, got {per!r}"
        )
    return per


def group_shape(shape: Sequence[int], per: Per) -> tuple[int, int]:
    """Return how many groups a tensor has, and how many values each; the last may be ragged.

    A sample is one index of the first dimension, a row all but the last dimension fixed; a tensor
    of fewer than two dimensions is one group.

    Args:
        shape: with at least one value.
        per: the grouping.

    Returns:
        Number of groups G and values per group M, with ``G * M >= numel``.

    Example:
        >>> from freewheel.codecs.grouping import group_shape
        >>> group_shape((8, 4, 5), "sample"), group_shape((8, 4, 5), "row"), group_shape((10,), 4)
        ((8, 20), (32, 5), (3, 4))
    """
    numel = math.prod(shape)
    if isinstance(per, int):
        return -(-numel // per), per
    if per == "tensor" or len(shape) < 2:
        return 1, numel
    num_groups = shape[0] if per == "sample" else numel // shape[-1]
    return num_groups, numel // num_groups


def grouped(flat: Tensor, num_groups: int, length: int) -> Tensor:
    """Return ``flat`` (N,) as (G, M); a ragged last group is filled up with its own last value."""
    missing = num_groups * length - flat.numel()
    if missing:
        flat = torch.cat([flat, flat[-1:].expand(missing)])
    return flat.view(num_groups, length)
