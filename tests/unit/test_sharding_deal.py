from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freewheel.errors import DataError
from freewheel.sharding import ShardingWarning, assign
from freewheel.sharding.shares import deal, shard_sizes, split_by_owner

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(any)


@given(num=st.integers(0, 500), workers=st.integers(1, 40))
def test_equal_workers_differ_by_one(num: int, workers: int) -> None:
    sizes = shard_sizes(num, workers)
    assert sizes.sum() == num
    assert sizes.max() - sizes.min() <= 1


@given(num=st.integers(0, 500), speeds=st.lists(st.floats(0.01, 100), min_size=1, max_size=20))
def test_sizes_are_the_share_rounded_down_or_up(num: int, speeds: list[float]) -> None:
    sizes = shard_sizes(num, len(speeds), speeds)
    share = num * np.array(speeds) / np.sum(speeds)
    assert sizes.sum() == num
    assert (np.abs(sizes - share) < 1 + 1e-9).all()


@settings(deadline=None)
@given(counts=COUNTS)
def test_any_prefix_is_shared_in_proportion(counts: list[int]) -> None:
    sizes, total = np.array(counts), sum(counts)
    owner = deal(np.arange(total), sizes)
    assert np.bincount(owner, minlength=len(counts)).tolist() == counts
    served = np.cumsum(owner[:, None] == np.arange(len(counts)), axis=0)
    due = np.arange(1, total + 1)[:, None] * sizes / total
    assert np.abs(served - due).max() < 1 + 1e-9


def test_split_by_owner_keeps_empty_workers() -> None:
    assert [x.tolist() for x in split_by_owner(np.array([2, 0, 2]), 4)] == [[1], [], [0, 2], []]


@pytest.mark.parametrize("workers", [1, 2, 5, 12])
def test_class_counts_are_within_one(workers: int) -> None:
    labels = np.random.default_rng(0).integers(0, 7, 1000)
    shards = assign(None, labels, "stratified", workers=workers)
    counts = np.array([np.bincount(labels[shard], minlength=7) for shard in shards])
    assert (counts.max(axis=0) - counts.min(axis=0)).max() <= 1
    assert counts.sum() == 1000


def test_unequal_workers_see_the_same_distribution() -> None:
    labels = np.repeat([0, 1, 2], [600, 300, 100])
    shards = assign(None, labels, "stratified", workers=3, speeds=[1, 1, 8])
    assert [len(shard) for shard in shards] == [100, 100, 800]
    counts = np.array([np.bincount(labels[shard], minlength=3) for shard in shards])
    expected = np.outer([0.1, 0.1, 0.8], [600, 300, 100])
    assert np.abs(counts - expected).max() <= 2


def test_published_order_is_file_order() -> None:
    # algorithm 1: the i-th sample of a class goes to worker i mod n, classes following on here
    labels = [0, 1, 0, 1, 0, 1, 0, 1]
    first = assign(None, labels, "stratified", workers=2, seed=0, shuffle=False)
    other = assign(None, labels, "stratified", workers=2, seed=99, shuffle=False)
    assert [x.tolist() for x in first] == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert [x.tolist() for x in first] == [x.tolist() for x in other]


def test_a_shuffled_stratified_depends_on_the_seed() -> None:
    labels = np.arange(100) % 2
    first = assign(None, labels, "stratified", workers=2, seed=0)
    other = assign(None, labels, "stratified", workers=2, seed=1)
    assert [x.tolist() for x in first] != [x.tolist() for x in other]


def test_regression_bins_are_shared() -> None:
    values = np.random.default_rng(1).normal(size=1000)
    shards = assign(None, values, "stratified", workers=4, bins=20)
    ranks = np.argsort(np.argsort(values))
    for shard in shards:
        per_bin = np.bincount(ranks[shard] * 20 // 1000, minlength=20)
        assert (np.abs(per_bin - 12.5) <= 1).all()  # 50 values a bin, 4 workers


def test_rare_labels_are_shared_where_samples_have_several() -> None:
    rng = np.random.default_rng(2)
    marks = rng.random((600, 5)) < np.array([0.5, 0.4, 0.3, 0.1, 0.02])
    shards = assign(None, marks, "stratified", workers=3)
    counts = np.array([marks[shard].sum(axis=0) for shard in shards])
    rarest = int(marks.sum(axis=0).argmin())
    assert counts[:, rarest].max() - counts[:, rarest].min() <= 1
    assert (np.abs(counts - marks.sum(axis=0) / 3).max(axis=0) <= 4).all()


def test_dirichlet_goes_from_skewed_to_even() -> None:
    labels = np.repeat(np.arange(10), 500)

    def distance(alpha: float) -> float:
        shards = assign(None, labels, "dirichlet", workers=5, alpha=alpha)
        counts = np.array([np.bincount(labels[shard], minlength=10) for shard in shards])
        shares = counts / counts.sum(axis=1, keepdims=True)
        return float(0.5 * np.abs(shares - 0.1).sum(axis=1).mean())

    assert distance(1e6) < 0.01
    assert distance(0.05) > 0.4


def test_empty_shards_are_warned_of() -> None:
    with pytest.warns(ShardingWarning, match="3 of 5 shards are empty"):
        shards = assign(None, [0, 1], "stratified", workers=5)
    assert sorted(len(shard) for shard in shards) == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        ([[1.0], [1.0, 2.0]], None, "same shape"),
        (torch.ones(2, 1, requires_grad=True), None, "detached"),
        (scipy.sparse.eye(3).tocsr(), None, "got a single csr_"),
        ([["a"], ["b"]], None, "features must be real numbers"),
        (None, [0.0, float("nan")], "label of sample 1 is nan"),
        (None, ["a", None], "label of sample 1 is None"),
        (None, np.zeros((2, 2, 2)), r"shape \(N,\) or \(N, L\)"),
        (None, np.array(["2020-01-01"], dtype="M8[D]"), "numbers, booleans or text"),
        (None, np.full((2, 3), 7), "zeros and ones"),
        (None, None, "neither features nor labels"),
    ],
)
def test_what_is_no_data_is_refused(features: object, labels: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        assign(features, labels, "stratified", workers=2)


def test_tensors_and_lists_are_data() -> None:
    shards = assign(torch.ones(4, 2, 3), torch.tensor([0, 0, 1, 1]), "stratified", workers=2)
    assert [len(shard) for shard in shards] == [2, 2]
    shards = assign(None, [True, False, True, False], "stratified", workers=2)
    assert [len(shard) for shard in shards] == [2, 2]
