"""The user's own data, in the forms that people have it in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from freewheel.errors import DataError
from freewheel.streams import DatasetSplit, Source, TensorSplit, from_user, load

X = torch.arange(12.0).reshape(6, 2)
Y = torch.tensor([0, 1, 2, 0, 1, 3])


class Pairs(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return X[number], int(Y[number])


class WithClasses(Pairs):
    classes = ("a", "b", "c", "d", "e")


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1])


FORMS = {
    "train": (X, Y),
    "train, test": ((X, Y), (X[:2], Y[:2])),
    "arrays": ((X.numpy(), Y.numpy()), (X[:2].numpy(), Y[:2].numpy())),
    "three": ((X, Y), (X[:1], Y[:1]), (X[:2], Y[:2])),
    "dict": {"train": (X, Y), "test": Pairs()},
    "tensor dataset": (TensorDataset(X, Y), TensorDataset(X[:2], Y[:2])),
    "dataset": Pairs(),
    "datasets": (Pairs(), Pairs()),
    "mixed": (Pairs(), (X, Y)),
    "split": (TensorSplit(X, Y), DatasetSplit(Pairs())),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_trains_on_every_sample(form: str) -> None:
    source = from_user(FORMS[form])
    numbers = torch.arange(6)
    assert len(source.train) == 6
    assert torch.equal(source.train.inputs(numbers), X)
    assert torch.equal(source.train.targets(numbers), Y)
    assert (source.spec.input_shape, source.spec.task) == ((2,), "classification")
    for part in (source.validation, source.test):
        assert part.inputs(torch.arange(len(part))).shape == (len(part), 2)


def test_parts_that_are_not_given_are_empty() -> None:
    three, two, one = (from_user(FORMS[form]) for form in ("three", "train, test", "train"))
    assert [(len(s.validation), len(s.test)) for s in (three, two, one)] == [(1, 2), (0, 2), (0, 0)]


def test_a_source_is_taken_as_it_is() -> None:
    source = load("synthetic")
    assert from_user(source) is source


@pytest.mark.parametrize(
    ("value", "task", "num_classes"),
    [
        ((X, Y), "classification", 4),
        ((X, X), "regression", None),
        ((X.long(), X.long() + 1), "language", 13),
        (WithClasses(), "classification", 5),
        (TensorDataset(X, Y), "classification", 4),
        (Pairs(), "classification", None),
        ({"train": Pairs(), "num_classes": 9}, "classification", 9),
        ({"train": (X, Y), "task": "regression"}, "regression", None),
    ],
)
def test_the_task_is_told_from_the_data(value: object, task: str, num_classes: int | None) -> None:
    spec = from_user(value).spec
    assert (spec.task, spec.num_classes) == (task, num_classes)


def test_inputs_may_be_a_tree() -> None:
    data = [({"ids": torch.tensor([1, 2]), "extra": (0.5,)}, torch.tensor([0.5]))] * 3
    spec = from_user({"train": DatasetSplit(data), "name": "trees"}).spec
    assert (spec.name, spec.input_shape, spec.input_dtype) == ("trees", (2,), torch.int64)
    assert (spec.task, spec.target_shape) == ("regression", (1,))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "must be a Source, a dataset, .* got a NoneType"),
        ("digits", "got a str"),
        (X, "got a Tensor"),
        (((X, Y, X), (X, Y)), "got a tuple of 2: tuple, tuple"),
        ({}, "needs a part 'train'"),
        ({"tran": (X, Y)}, "no part 'tran'; did you mean 'train'"),
        ({"train": X}, "train must be a map-style dataset or a pair .* got a Tensor"),
        ({"train": (X, Y), "test": 3}, "test must be .* got a int"),
        ({"train": (X, Y), "task": "sorting"}, "unknown task 'sorting'"),
        (Stream(), "train is a Stream, which can only be iterated"),
        ((X, Y[:2]), "6 inputs but 2 targets"),
        ((X[:0], Y[:0]), "'user' has no rows to train on"),
        (({}, {}), "got a tuple of 2: dict, dict"),
        (DatasetSplit([("word", "other")]), "no tensor or number in an input"),
    ],
)
def test_what_is_no_data_is_refused(value: object, message: str) -> None:
    with pytest.raises(DataError, match=message):
        from_user(value)


def test_numpy_shares_memory_with_the_user() -> None:
    x = np.zeros((2, 1), dtype=np.float32)
    source = from_user((x, np.zeros(2, dtype=np.int64)))
    x[1] = 7.0
    assert isinstance(source, Source)
    assert source.train.inputs(torch.tensor([1])).item() == 7.0
