"""The sums and the guard on tensors: what a server does when a protocol says ``Fold``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return ``sum_i weights[i] * tensors[i]``, added up in the order given.

    A tensor of weight 0 is left out, so that its NaN cannot spread (0 * NaN is NaN), and a single
    tensor of weight 1 comes back bit for bit.

    Args:
        tensors: at least one, of one shape and floating dtype.
        weights: as many.

    Returns:
        A new tensor of that shape and dtype.

    Raises:
        ValueError: the counts differ or are zero, or shapes differ.

    Example:
        >>> import torch
        >>> from freewheel.aggregation.tensors import weighted_sum
        >>> weighted_sum([torch.tensor([1.0]), torch.tensor([5.0])], [0.75, 0.25])
        tensor([2.])
    """
    if not tensors or len(tensors) != len(weights):
        raise ValueError(
            f"need as many weights as tensors and at least one, got {len(tensors)} tensors and "
            f"{len(weights)} weights"
        )
    if any(tensor.shape != tensors[0].shape for tensor in tensors):
        shapes = sorted({tuple(tensor.shape) for tensor in tensors})
        raise ValueError(f"updates must have one shape, got {shapes}")
    total: Tensor | None = None
    for tensor, weight in zip(tensors, weights, strict=True):
        if weight == 0.0:
            continue
        if total is None:
            total = tensor * weight
        else:
            total.add_(tensor, alpha=weight)
    return torch.zeros_like(tensors[0]) if total is None else total


def num_non_finite(tensors: Sequence[Tensor]) -> int:
    """Return how many values are NaN or infinite; integers and booleans are always finite.

    Example:
        >>> import torch
        >>> from freewheel.aggregation.tensors import num_non_finite
        >>> num_non_finite([torch.tensor([1.0, float("nan")]), torch.tensor([2, 3])])
        1
    """
    bad = 0
    for tensor in tensors:
        # One pass decides in the usual case: a sum is finite if every term is (short of overflow).
        if tensor.is_floating_point() or tensor.is_complex():
            if bool(torch.isfinite(tensor.sum())):
                continue
            bad += int(tensor.numel() - int(torch.isfinite(tensor).sum()))
    return bad
