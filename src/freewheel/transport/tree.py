"""How tensors sit in a nested value, written so that it can be sent beside them.

The tree is plain lists, strings, numbers and None, so msgpack carries it; it survives a journey
that knows no tuples. A list in the tree is always a node: ``["tensor", requires_grad]``,
``["tuple", [...]]``, ``["list", [...]]`` or ``["dict", [[key, value], ...]]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from freewheel.errors import ModelError, WireError

#: How deep values may be nested; a value that contains itself is caught by this too.
MAX_DEPTH = 32

_PLAIN = (type(None), bool, int, float, str)


def flatten(value: Any) -> tuple[Any, tuple[Tensor, ...]]:
    """Split a nested value into its tree and its tensors, in the order of the value.

    Args:
        value: tensors, None, str, int, float, bool, and tuples, lists and dicts of these.

    Returns:
        The tree and the tensors; ``unflatten`` makes the value from them again.

    Raises:
        ModelError: the value holds another type, or is nested deeper than ``MAX_DEPTH``.

    Example:
        >>> import torch
        >>> from freewheel.transport.tree import flatten
        >>> tree, tensors = flatten((torch.zeros(2), None, 3))
        >>> tree, len(tensors)
        (['tuple', [['tensor', False], None, 3]], 1)
    """
    tensors: list[Tensor] = []
    return _pack(value, tensors, "value", 0), tuple(tensors)


def unflatten(tree: Any, tensors: Sequence[Tensor]) -> Any:
    """Make the value again from what ``flatten`` gave, after any journey.

    A floating tensor that required a gradient where it was flattened requires one again. A tree of
    None stands for None, or for a plain list of tensors where there are any.

    Args:
        tree: as ``flatten`` gave it.
        tensors: as many as it gave.

    Raises:
        WireError: the tree is malformed, or the number of tensors differs.

    Example:
        >>> import torch
        >>> from freewheel.transport.tree import flatten, unflatten
        >>> unflatten(*flatten({"mask": (torch.ones(1), None)}))
        {'mask': (tensor([1.]), None)}
    """
    if tree is None and tensors:
        return list(tensors)
    remaining = iter(tensors)
    value = _unpack(tree, remaining, 0)
    if next(remaining, None) is not None:
        raise WireError(f"tree has fewer places than the {len(tensors)} tensors sent with it")
    return value


def _pack(value: Any, tensors: list[Tensor], where: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ModelError(
            f"{where[:80]} is nested deeper than {MAX_DEPTH}; send flatter tuples, lists or dicts"
        )
    if isinstance(value, Tensor):
        tensors.append(value)
        return ["tensor", value.requires_grad]
    if type(value) is int and not -(2**63) <= value < 2**64:
        raise ModelError(f"{where} is {value}; an integer must fit in 64 bits; send a float or str")
    if type(value) in _PLAIN:
        return value
    if type(value) in (tuple, list):
        items = [_pack(v, tensors, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
        return [type(value).__name__, items]
    if type(value) is dict:
        for key in value:
            if type(key) not in _PLAIN:
                raise ModelError(f"{where} has a key of type {_name(key)}; use str or int keys")
        pairs = [[k, _pack(v, tensors, f"{where}[{k!r}]", depth + 1)] for k, v in value.items()]
        return ["dict", pairs]
    raise ModelError(
        f"{where} is of type {_name(value)}, which cannot be sent; "
        "use tensors, None, str, int, float, bool, and plain tuples, lists or dicts of them"
    )


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")


def _unpack(tree: Any, tensors: Iterator[Tensor], depth: int) -> Any:
    if type(tree) in _PLAIN:
        return tree
    if type(tree) is not list or len(tree) != 2 or depth > MAX_DEPTH:
        raise WireError(f"malformed tree: a {type(tree).__name__} at depth {depth} is not a node")
    tag, body = tree
    if tag == "tensor":
        tensor = next(tensors, None)
        if tensor is None:
            raise WireError("tree has more places than the tensors sent with it")
        if body is True and (tensor.is_floating_point() or tensor.is_complex()):
            return tensor.requires_grad_()
        return tensor
    if type(body) is not list:
        raise WireError("malformed tree: a node has no list of children")
    if tag in ("tuple", "list"):
        items = [_unpack(child, tensors, depth + 1) for child in body]
        return tuple(items) if tag == "tuple" else items
    if tag == "dict":
        return dict(_unpack_pair(pair, tensors, depth) for pair in body)
    raise WireError("malformed tree: a node of an unknown sort")


def _unpack_pair(pair: Any, tensors: Iterator[Tensor], depth: int) -> tuple[Any, Any]:
    if type(pair) is not list or len(pair) != 2 or type(pair[0]) not in _PLAIN:
        raise WireError("malformed tree: a dict node holds something else than pairs")
    return pair[0], _unpack(pair[1], tensors, depth + 1)
