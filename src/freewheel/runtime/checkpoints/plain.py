"""State as JSON can hold it, with its tensors apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from freewheel.errors import CheckpointError


def to_plain(tree: Any, tensors: dict[str, Tensor], where: str = "") -> Any:
    """Return what JSON can hold of a state, and put its tensors into ``tensors``.

    Tuples, sets, counters and keys that are no strings are marked, so that ``from_plain`` gives
    back what was there: a ``MultiStepLR`` counts its milestones by integer keys.

    Args:
        tree: dicts, lists, tuples, sets, numbers, strings, None and tensors.
        tensors: filled with copies on the CPU, named by the way to them.
        where: the way so far.

    Raises:
        CheckpointError: something else is in it.

    Example:
        >>> import torch
        >>> from freewheel.runtime.checkpoints.plain import from_plain, to_plain
        >>> found = {}
        >>> plain = to_plain({"a": [torch.ones(2), 3], "b": {7: (1, 2)}}, found)
        >>> plain["a"], list(found)
        ([{'$tensor': 'a/0'}, 3], ['a/0'])
        >>> from_plain(plain, found)["b"]
        {7: (1, 2)}
    """
    if isinstance(tree, Tensor):
        tensors[where] = tree.detach().cpu().clone().contiguous()
        return {"$tensor": where}
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if isinstance(tree, (np.integer, np.floating, np.bool_)):
        return tree.item()
    if isinstance(tree, Mapping):
        kind = "$counter" if isinstance(tree, Counter) else "$items"
        if kind == "$items" and all(isinstance(key, str) for key in tree):
            return {key: to_plain(value, tensors, _join(where, key)) for key, value in tree.items()}
        return {
            kind: [
                [to_plain(key, tensors), to_plain(value, tensors, _join(where, key))]
                for key, value in tree.items()
            ]
        }
    if isinstance(tree, (list, tuple, set, frozenset)):
        items = [to_plain(value, tensors, _join(where, i)) for i, value in enumerate(tree)]
        if isinstance(tree, list):
            return items
        return {"$tuple" if isinstance(tree, tuple) else "$set": items}
    raise CheckpointError(
        f"the state {where!r} is a {type(tree).__name__}, which a checkpoint cannot hold; an "
        f"optimizer, schedule or protocol of your own must keep tensors, numbers, strings, lists "
        f"and dicts in its state_dict()"
    )


def from_plain(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo ``to_plain``; a tensor is read when it is met."""
    if isinstance(tree, list):
        return [from_plain(value, tensors) for value in tree]
    if not isinstance(tree, dict):
        return tree
    mark = next(iter(tree), "") if len(tree) == 1 else ""
    if mark == "$tensor":
        return tensors[tree[mark]]
    if mark == "$tuple":
        return tuple(from_plain(tree[mark], tensors))
    if mark == "$set":
        return set(from_plain(tree[mark], tensors))
    if mark in ("$items", "$counter"):
        items = {from_plain(key, tensors): from_plain(value, tensors) for key, value in tree[mark]}
        return Counter(items) if mark == "$counter" else items
    return {key: from_plain(value, tensors) for key, value in tree.items()}


def _join(where: str, key: object) -> str:
    return f"{where}/{key}" if where else str(key)
