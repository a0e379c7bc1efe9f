"""Values that pass between layers: a tensor, None, a number, or tuples, lists and dicts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in ``value``, depth first.

    Example:
        >>> import torch
        >>> from freewheel.models.tree import tensors_in
        >>> [t.numel() for t in tensors_in((torch.zeros(2), {"mask": torch.ones(3)}, None))]
        [2, 3]
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_in(item)


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return ``value`` with ``change`` applied to each tensor and all else as it was.

    Example:
        >>> import torch
        >>> from freewheel.models.tree import map_tensors
        >>> map_tensors(lambda t: t + 1, {"a": torch.zeros(1), "b": [None, 3]})
        {'a': tensor([1.]), 'b': [None, 3]}
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(change, item) for key, item in value.items()}
    if isinstance(value, tuple):
        items = [map_tensors(change, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [map_tensors(change, item) for item in value]
    return value
