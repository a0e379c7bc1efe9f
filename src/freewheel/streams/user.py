"""The user's own data, in the forms that people have it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from freewheel.errors import DataError, nearest
from freewheel.streams.base import DataSpec, Source, Split, SubsetSplit, Task, TensorSplit
from freewheel.streams.dataset import DatasetSplit

_PARTS = ("train", "validation", "test")
_KEYS = (*_PARTS, "name", "num_classes", "task")
_TASKS = ("classification", "regression", "language")


def from_user(value: Any) -> Source:
    """Make a source of what a user gives.

    A part is a map-style dataset of (input, target) pairs, a pair of tensors or NumPy arrays
    ``(inputs, targets)``, or a ``Split``. All samples of ``train`` are trained on; a part that is
    not given has length 0.

    Args:
        value: a ``Source``; one part (to train on); ``(train, test)``; ``(train, validation,
            test)``; or a dict with ``train`` and any of ``validation``, ``test``, ``name``,
            ``num_classes`` and ``task`` (``"classification"``, ``"regression"``,
            ``"language"``). What is not given is told from the first sample: integer targets of
            the inputs' shape are a language, others are classes, floating ones a regression.

    Returns:
        The source. Where the number of classes is neither given nor to be had cheaply (targets in
        memory, or the dataset's ``classes``), ``spec.num_classes`` is None.

    Raises:
        DataError: it is none of these, or there is nothing to train on.

    Example:
        >>> import torch
        >>> from freewheel.streams.user import from_user
        >>> x, y = torch.zeros(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
        >>> source = from_user(((x, y), (x[:2], y[:2])))
        >>> len(source.train), len(source.validation), len(source.test), source.spec.num_classes
        (6, 0, 2, 3)
    """
    if isinstance(value, Source):
        return value
    given = _given(value)
    train = _split(given["train"], "train")
    name = str(given.get("name", "user"))
    if len(train) == 0:
        raise DataError(f"data set {name!r} has no rows to train on; at least 1 is needed")
    others = {
        part: _split(given[part], part)
        if given.get(part) is not None
        else SubsetSplit(train, torch.empty(0, dtype=torch.int64))
        for part in _PARTS[1:]
    }
    return Source(name, _spec(name, given, train), train, others["validation"], others["test"])


def _given(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        for key in value:
            if key not in _KEYS:
                raise DataError(f"data has no part {key!r}{nearest(str(key), _KEYS)}")
        if value.get("train") is None:
            raise DataError(f"data needs a part 'train', got only {', '.join(map(repr, value))}")
        return value
    if _is_part(value):
        return {"train": value}
    if isinstance(value, tuple) and len(value) in (2, 3) and all(map(_is_part, value)):
        names = _PARTS if len(value) == 3 else ("train", "test")
        return dict(zip(names, value, strict=True))
    raise DataError(
        f"data must be a Source, a dataset, a pair of tensors (inputs, targets), (train, test), "
        f"(train, validation, test), or a dict with 'train', got {_described(value)}"
    )


def _is_part(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return len(value) == 2 and all(isinstance(item, Tensor | np.ndarray) for item in value)
    # A tensor alone has __getitem__ too, but no targets.
    return not isinstance(value, Tensor | np.ndarray | str | bytes | Mapping) and (
        isinstance(value, Split | IterableDataset) or hasattr(value, "__getitem__")
    )


def _split(value: Any, part: str) -> Split:
    if isinstance(value, Split):
        return value
    if isinstance(value, IterableDataset):
        raise DataError(
            f"{part} is a {type(value).__name__}, which can only be iterated; samples are asked "
            "for by number: give a map-style dataset, or read it with IterableStream"
        )
    if not _is_part(value):
        raise DataError(
            f"{part} must be a map-style dataset or a pair of tensors (inputs, targets), got "
            f"{_described(value)}"
        )
    if isinstance(value, tuple | list):
        return TensorSplit(torch.as_tensor(value[0]), torch.as_tensor(value[1]))
    if isinstance(value, TensorDataset) and len(value.tensors) == 2:
        return TensorSplit(value.tensors[0], value.tensors[1])
    return DatasetSplit(value)


def _described(value: Any) -> str:
    if isinstance(value, tuple | list):
        held = [type(item).__name__ for item in value[:4]]
        return f"a {type(value).__name__} of {len(value)}: {', '.join(held)}"
    return f"a {type(value).__name__}"


def _spec(name: str, given: Mapping[str, Any], train: Split) -> DataSpec:
    one = torch.zeros(1, dtype=torch.int64)
    x = _first_tensor(train.inputs(one), "an input")
    y = _first_tensor(train.targets(one), "a target")
    task = str(given.get("task") or _task(x, y))
    if task not in _TASKS:
        raise DataError(f"unknown task {task!r}{nearest(task, _TASKS)}")
    num_classes = given.get("num_classes")
    if num_classes is None and task != "regression":
        num_classes = _num_classes(given["train"], task)
    return DataSpec(
        name, tuple(x.shape[1:]), x.dtype, num_classes, cast(Task, task), tuple(y.shape[1:])
    )


def _task(x: Tensor, y: Tensor) -> Task:
    if y.is_floating_point() or y.is_complex():
        return "regression"
    same = y.ndim > 1 and y.shape == x.shape and not x.is_floating_point()
    return "language" if same else "classification"


def _num_classes(part: Any, task: str) -> int | None:
    if hasattr(part, "classes"):  # as the datasets of torchvision have it
        return len(part.classes)
    tensors = part if isinstance(part, tuple | list) else getattr(part, "tensors", None)
    if tensors is None or len(tensors) != 2:
        return None
    known = tensors if task == "language" else tensors[1:]
    return int(max(torch.as_tensor(values).max() for values in known)) + 1


def _first_tensor(value: Any, what: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    for item in value.values() if isinstance(value, Mapping) else value:
        if isinstance(item, Tensor | Mapping | tuple | list):
            return _first_tensor(item, what)
    raise DataError(f"there is no tensor or number in {what} of the data")
