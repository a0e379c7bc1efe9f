"""Nested values split into a tree and tensors, and made again."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freewheel.errors import ModelError, WireError
from freewheel.transport.tree import MAX_DEPTH, flatten, unflatten

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"), max_size=5)
    | st.builds(torch.tensor, st.lists(st.floats(width=32, allow_nan=False), max_size=3))
)
KEYS = st.text(st.characters(codec="utf-8"), max_size=3) | st.integers(0, 9)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@settings(max_examples=50)
@given(VALUES)
def test_any_nested_value_comes_back_with_its_types_after_msgpack(value: Any) -> None:
    tree, tensors = flatten(value)
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors)
    assert same(unflatten(msgpack.unpackb(msgpack.packb(tree)), tensors), value)


def test_scenario_8_outputs_with_masks_none_and_dicts_keep_requires_grad() -> None:
    weight = torch.ones(2, requires_grad=True)
    output = {"x": (weight * 2, torch.tensor([1, 0]), None), "free": [torch.ones(1)]}
    tree, tensors = flatten(output)
    journeyed = [tensor.detach().clone() for tensor in tensors]
    again = unflatten(tree, journeyed)
    x, mask, nothing = again["x"]
    assert (x.requires_grad, mask.requires_grad, nothing) == (True, False, None)
    assert x.is_leaf
    assert not again["free"][0].requires_grad


def test_a_bare_tensor_and_a_bare_none() -> None:
    tensor = torch.ones(2)
    assert unflatten(*flatten(tensor)) is tensor
    assert unflatten(*flatten(None)) is None
    assert unflatten(None, (tensor,)) == [tensor]


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": {1, 2}}, r"value\['a'\] is of type set"),
        ((1, [np.float32(2)]), r"value\[1\]\[0\] is of type numpy.float32"),
        (Point(1, 2), "Point, which cannot be sent"),
        (OrderedDict(a=1), "collections.OrderedDict"),
        ({(1, 2): 3}, "key of type tuple"),
        (2**64, "must fit in 64 bits"),
        (lambda: None, "of type function"),
    ],
)
def test_other_types_are_refused_by_name_and_place(value: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        flatten(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ModelError, match=f"deeper than {MAX_DEPTH}"):
        flatten(value)


@pytest.mark.parametrize(
    "tree",
    [
        ["tuple", [["tensor", False], ["tensor", False]]],
        ["list", []],
        ["tensor"],
        ["tuple", 3],
        ["set", []],
        ["dict", [["key"]]],
        ["dict", [[["list", []], 1]]],
        [["tensor"], []],
        {"tensor": 1},
        b"tensor",
    ],
)
def test_a_malformed_tree_is_refused(tree: Any) -> None:
    with pytest.raises(WireError):
        unflatten(tree, (torch.ones(1),))


def test_a_tree_nested_without_end_is_refused() -> None:
    tree: Any = None
    for _ in range(5000):
        tree = ["list", [tree]]
    with pytest.raises(WireError):
        unflatten(tree, ())
