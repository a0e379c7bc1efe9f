"""Splits, sources, micro-batches and the look for NaN."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from freewheel.errors import ConfigError, DataError, NonFiniteError
from freewheel.streams import (
    DatasetSplit,
    DataSpec,
    Source,
    Split,
    SubsetSplit,
    TensorSplit,
    check_finite,
    split_batch,
)
from freewheel.streams.base import LazyTensor

NONE = torch.empty(0, dtype=torch.int64)


def test_tensor_split_scales_bytes_to_mean_and_deviation() -> None:
    images = torch.tensor([[0, 51], [255, 102]], dtype=torch.uint8)
    split = TensorSplit(images, torch.arange(2), mean=0.2, std=0.5)
    got = split.inputs(torch.tensor([1, 0, 1]))
    expected = torch.tensor([[1.6, 0.4], [-0.4, 0.0], [1.6, 0.4]])
    assert torch.allclose(got, expected, atol=1e-6, rtol=0)
    assert images.tolist() == [[0, 51], [255, 102]]


def test_splits_give_empty_batches_of_the_right_shape() -> None:
    whole = TensorSplit(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
    pairs = [({"a": torch.zeros(2), "b": (1, "word")}, 5)] * 4
    for split in (whole, SubsetSplit(whole, torch.tensor([2, 3]))):
        assert split.inputs(NONE).shape == (0, 3)
        assert split.targets(NONE).shape == (0,)
    collated = DatasetSplit(pairs)
    assert collated.inputs(NONE)["a"].shape == (0, 2)
    assert collated.inputs(NONE)["b"][0].dtype == torch.int64
    assert list(collated.inputs(NONE)["b"][1]) == []
    assert collated.targets(NONE).shape == (0,)


def test_all_splits_keep_the_protocol() -> None:
    whole = TensorSplit(torch.zeros(4, 3), torch.zeros(4))
    for split in (whole, SubsetSplit(whole, NONE), DatasetSplit([(1, 2)])):
        assert isinstance(split, Split)


def test_lazy_tensor_is_read_once_and_only_when_needed() -> None:
    reads = []

    def read() -> torch.Tensor:
        reads.append("inputs")
        return torch.arange(3)

    split = TensorSplit(LazyTensor(3, read), torch.arange(3))
    assert len(split) == 3
    split.targets(torch.tensor([0]))
    assert reads == []
    split.inputs(torch.tensor([0]))
    split.inputs(torch.tensor([1]))
    assert reads == ["inputs"]


def test_unequal_inputs_and_targets_are_refused() -> None:
    with pytest.raises(DataError, match="3 inputs but 2 targets"):
        TensorSplit(torch.zeros(3), torch.zeros(2))


def test_a_subset_outside_its_split_is_refused() -> None:
    whole = TensorSplit(torch.zeros(3), torch.zeros(3))
    with pytest.raises(DataError, match=r"samples 1 to 3 were asked .* samples 0 to 2"):
        SubsetSplit(whole, torch.tensor([1, 3]))
    with pytest.raises(DataError, match="samples -1 to 0"):
        SubsetSplit(whole, torch.tensor([-1, 0]))


def test_a_source_with_no_rows_is_refused() -> None:
    nothing = TensorSplit(torch.zeros(0, 2), torch.zeros(0))
    spec = DataSpec("void", (2,), torch.float32, None, "regression")
    with pytest.raises(DataError, match="'void' has no rows to train on"):
        Source("void", spec, nothing, nothing, nothing)


class Counting:
    """A map-style dataset that counts its reads."""

    def __init__(self) -> None:
        self.reads: list[int] = []

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        self.reads.append(number)
        return torch.full((2,), float(number)), 10 * number


@pytest.mark.parametrize("num_workers", [0, 2])
def test_dataset_split_reads_each_sample_of_a_batch_once(num_workers: int) -> None:
    data = Counting()
    split = DatasetSplit(data, num_workers=num_workers)
    one, two = torch.tensor([3, 1]), torch.tensor([4])
    assert split.inputs(one).tolist() == [[3.0, 3.0], [1.0, 1.0]]
    assert split.inputs(two).tolist() == [[4.0, 4.0]]
    assert split.targets(one).tolist() == [30, 10]
    assert split.targets(two).tolist() == [40]
    assert sorted(data.reads) == [1, 3, 4]


def test_dataset_split_uses_batch_reads_where_there_are() -> None:
    class Whole(Counting):
        def __getitems__(self, numbers: list[int]) -> list[tuple[int, int]]:
            self.reads += numbers
            return [(n, -n) for n in numbers]

        def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
            raise AssertionError("a batch was to be read at once")

    data = Whole()
    assert DatasetSplit(data).targets(torch.tensor([2, 0])).tolist() == [-2, 0]
    assert data.reads == [2, 0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([(1, 2, 3)], r"must be a pair \(input, target\), got a tuple of 3"),
        ([torch.zeros(2)], "must be a pair .* got a Tensor"),
        ([(torch.zeros(2), 0), (torch.zeros(3), 0)], "cannot be put into one batch .* pad them"),
    ],
)
def test_dataset_split_names_samples_that_are_no_pairs(data: list[object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        DatasetSplit(data).inputs(torch.arange(len(data)))


def test_dataset_split_refuses_what_cannot_be_indexed() -> None:
    with pytest.raises(DataError, match="generator is no map-style dataset"):
        DatasetSplit(pair for pair in [(1, 2)])


@given(st.integers(0, 300), st.integers(1, 40))
def test_split_batch_is_torch_chunk_without_empty_ones(num_samples: int, num_micro: int) -> None:
    batch = torch.arange(num_samples)
    chunks = [chunk.tolist() for chunk in batch.chunk(num_micro) if len(chunk)]
    cut = [batch[start:stop].tolist() for start, stop in split_batch(num_samples, num_micro)]
    assert cut == chunks


def test_split_batch_of_scenarios_1_and_4() -> None:
    sizes = [[stop - start for start, stop in split_batch(n, 2)] for n in (8, 5, 1, 0)]
    assert sizes == [[4, 4], [3, 2], [1], []]


def test_split_batch_refuses_no_micro_batches() -> None:
    with pytest.raises(ConfigError, match="micro_batches must be >= 1, got 0"):
        split_batch(4, 0)
    with pytest.raises(ConfigError, match="got -1"):
        split_batch(-1, 2)


def test_check_finite_lets_large_finite_numbers_and_integers_pass() -> None:
    big = torch.full((4,), torch.finfo(torch.float32).max)
    check_finite([big, {"n": torch.tensor([1]), "none": None}, torch.zeros(0, 3)], "inputs")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_check_finite_names_the_sample(bad: float) -> None:
    batch = torch.zeros(4, 3)
    batch[2, 1] = bad
    indices = torch.tensor([10, 11, 12, 13])
    with pytest.raises(NonFiniteError, match=r"inputs of step 7: 1 of 12 .* in sample 12"):
        check_finite((torch.zeros(4), {"x": batch}), "inputs of step 7", indices)


def test_check_finite_is_not_fooled_by_infinities_that_cancel() -> None:
    with pytest.raises(NonFiniteError, match="2 of 3"):
        check_finite(torch.tensor([float("inf"), 1.0, float("-inf")]), "targets")
