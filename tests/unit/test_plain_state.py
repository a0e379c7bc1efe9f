"""State that goes through JSON comes back as it was."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from freewheel.errors import CheckpointError
from freewheel.runtime.checkpoints.plain import from_plain, to_plain

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers() | st.tuples(st.integers(), st.text())
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(st.integers(), max_size=3)
    ),
    max_leaves=12,
)


def through_json(tree: Any) -> Any:
    tensors: dict[str, torch.Tensor] = {}
    return from_plain(json.loads(json.dumps(to_plain(tree, tensors))), tensors)


@given(TREES)
def test_plain_values_keep_value_and_type(tree: Any) -> None:
    found = through_json(tree)
    assert found == tree
    assert type(found) is type(tree)


def test_tensors_counters_and_numpy_numbers() -> None:
    state = {
        "exp_avg": torch.randn(3, 2).t(),
        "step": torch.tensor(7.0),
        "milestones": Counter({30: 1, 80: 2}),
        "count": np.int64(3),
        "deep": [({"x": torch.ones(2, dtype=torch.bfloat16)},)],
    }
    found = through_json(state)
    assert torch.equal(found["exp_avg"], state["exp_avg"])
    assert found["step"].shape == ()
    assert list(found["milestones"].elements()) == [30, 80, 80]
    assert (found["count"], type(found["count"])) == (3, int)
    assert found["deep"][0][0]["x"].dtype == torch.bfloat16


def test_a_copy_is_kept_and_names_tell_the_way() -> None:
    value, tensors = torch.zeros(2), dict[str, torch.Tensor]()
    to_plain({"a": {"b": [value]}}, tensors)
    value += 1
    assert tensors.keys() == {"a/b/0"}
    assert torch.equal(tensors["a/b/0"], torch.zeros(2))


def test_what_json_cannot_hold_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"'schedule/fn' is a function, which a checkpoint"):
        to_plain({"schedule": {"fn": through_json}}, {})
