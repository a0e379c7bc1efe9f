"""Micro-batches of a batch, and a look for NaN in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from freewheel.errors import ConfigError, NonFiniteError


def split_batch(num_samples: int, num_micro: int) -> list[tuple[int, int]]:
    """Cut a batch into micro-batches as ``torch.chunk`` does; none of them is empty.

    Each has ``ceil(num_samples / num_micro)`` samples, the last what is left; there may be fewer
    than ``num_micro``, and a batch of 0 has none.

    Args:
        num_samples: samples in the batch, at least 0.
        num_micro: micro-batches wanted, at least 1.

    Returns:
        ``(start, stop)`` of each, in order.

    Raises:
        ConfigError: ``num_micro`` is below 1 or ``num_samples`` below 0.

    Example:
        >>> from freewheel.streams.batching import split_batch
        >>> split_batch(5, 2), split_batch(1, 2), split_batch(0, 2)
        ([(0, 3), (3, 5)], [(0, 1)], [])
    """
    if num_micro < 1:
        raise ConfigError(f"micro_batches must be >= 1, got {num_micro}; use 1 for whole batches")
    if num_samples < 0:
        raise ConfigError(f"a batch must have >= 0 samples, got {num_samples}")
    size = -(-num_samples // num_micro)
    return [
        (start, min(start + size, num_samples)) for start in range(0, num_samples, max(size, 1))
    ]


def check_finite(value: Any, what: str, indices: Tensor | None = None) -> None:
    """Refuse a batch that holds NaN or infinity.

    Args:
        value: a tensor, or a tuple, list or dict of such values; integers and None pass.
        what: for the message, e.g. ``"inputs of step 7"``.
        indices: int64 ``[batch]``, the samples' numbers, to name the first bad one.

    Raises:
        NonFiniteError: names ``what``, how many numbers are bad, and the first sample with one.

    Example:
        >>> import torch
        >>> from freewheel.streams.batching import check_finite
        >>> check_finite({"x": torch.zeros(2), "mask": torch.ones(2, dtype=torch.int64)}, "inputs")
        >>> check_finite(torch.tensor([[0.0], [float("nan")]]), "inputs", torch.tensor([40, 41]))
        Traceback (most recent call last):
        freewheel.errors.NonFiniteError: inputs: 1 of 2 numbers are NaN or infinite, first in \
sample 41; inputs must be finite: clean or drop that sample
    """
    for leaf in _tensors(value):
        if not (leaf.is_floating_point() or leaf.is_complex()):
            continue
        # One pass without a mask in the usual case: any NaN or infinity makes the sum non-finite.
        if leaf.numel() == 0 or bool(torch.isfinite(leaf.sum())):
            continue
        bad = ~torch.isfinite(leaf)
        if not bool(bad.any()):
            continue  # the sum overflowed, the numbers are finite
        rows = bad.reshape(len(leaf), -1).any(1) if leaf.ndim else bad.reshape(1)
        row = int(rows.nonzero()[0, 0])
        sample = int(indices[row]) if indices is not None else row
        raise NonFiniteError(
            f"{what}: {int(bad.sum())} of {leaf.numel()} numbers are NaN or infinite, first in "
            f"sample {sample}; {what.split(' ')[0]} must be finite: clean or drop that sample"
        )


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
