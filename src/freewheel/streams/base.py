"""What a source of samples is: a description, and parts to train, validate and test on.

Inputs and targets are asked for separately, by sample number: in a pipeline only the first stage
reads inputs and only the last reads targets, so no process pays for what it does not use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from freewheel.errors import DataError

Task = Literal["classification", "regression", "language"]


@dataclass(frozen=True, slots=True)
class DataSpec:
    """What one sample looks like: enough to build a model and choose a loss.

    Args:
        name: of the data set.
        input_shape: shape of one input, without the batch dimension; of the first tensor where
            inputs are a tuple or dict.
        input_dtype: dtype of that tensor.
        num_classes: number of classes, or the size of the vocabulary of a language; None for a
            regression, or where it is not known.
        task: ``"classification"`` (targets int64 ``[batch]``), ``"regression"`` (targets float32
            ``[batch, *target_shape]``) or ``"language"`` (inputs and targets int64
            ``[batch, context]``, targets shifted by one).
        target_shape: shape of one target, without the batch dimension.

    Example:
        >>> import torch
        >>> from freewheel.streams.base import DataSpec
        >>> DataSpec("digits", (1, 8, 8), torch.float32, 10, "classification").num_features
        64
    """

    name: str
    input_shape: tuple[int, ...]
    input_dtype: torch.dtype
    num_classes: int | None
    task: Task
    target_shape: tuple[int, ...] = ()

    @property
    def num_features(self) -> int:
        """Numbers in one input: the product of its shape."""
        return int(torch.Size(self.input_shape).numel())


@runtime_checkable
class Split(Protocol):
    """One part of a data set (train, validation or test): samples numbered from 0.

    ``indices`` is an int64 tensor ``[batch]``, possibly empty; what comes back has ``batch`` in
    front, as one tensor or as a tuple or dict of tensors. A split with a true attribute
    ``repeatable`` gives the same for the same indices and draws no random numbers, so that batches
    may be fetched ahead; without one it is taken to be otherwise.

    Example:
        >>> import torch
        >>> from freewheel.streams.base import Split, TensorSplit
        >>> isinstance(TensorSplit(torch.zeros(3, 2), torch.zeros(3)), Split)
        True
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def inputs(self, indices: Tensor) -> Any:
        """Return the inputs of these samples."""
        ...

    def targets(self, indices: Tensor) -> Any:
        """Return the targets of these samples."""
        ...


@dataclass(frozen=True, slots=True)
class Source:
    """A data set in three parts. A part that does not exist has length 0.

    Args:
        name: of the data set that is really read, which ``load(..., fallback=...)`` may have
            changed.
        spec: what one sample looks like.
        train: what is trained on; never empty.
        validation: what settings are chosen on.
        test: what is reported.

    Raises:
        DataError: there is nothing to train on.

    Example:
        >>> import torch
        >>> from freewheel.streams.base import DataSpec, Source, TensorSplit
        >>> part = TensorSplit(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64))
        >>> spec = DataSpec("zeros", (3,), torch.float32, 2, "classification")
        >>> len(Source("zeros", spec, part, part, part).train)
        4
    """

    name: str
    spec: DataSpec
    train: Split
    validation: Split
    test: Split

    def __post_init__(self) -> None:
        if len(self.train) == 0:
            raise DataError(
                f"data set {self.name!r} has no rows to train on; at least 1 is needed: check "
                "the file or factory that it comes from"
            )


class LazyTensor:
    """A tensor whose length is known now and which is read when it is first used.

    Args:
        num_samples: its first dimension.
        read: gives the tensor ``[num_samples, ...]``; called once at most.

    Example:
        >>> import torch
        >>> from freewheel.streams.base import LazyTensor
        >>> LazyTensor(3, lambda: torch.arange(3)).get()
        tensor([0, 1, 2])
    """

    __slots__ = ("_read", "_value", "num_samples")

    def __init__(self, num_samples: int, read: Callable[[], Tensor]) -> None:
        self.num_samples = num_samples
        self._read = read
        self._value: Tensor | None = None

    def get(self) -> Tensor:
        """Return the tensor, reading it the first time."""
        if self._value is None:
            self._value = self._read()
        return self._value


class TensorSplit:
    """Samples held in memory as two tensors.

    Images may stay uint8, a quarter of the memory, and become ``(x / 255 - mean) / std`` in
    float32 when they are asked for.

    Args:
        inputs: ``[num_samples, ...]`` of any dtype, or a ``LazyTensor`` of them.
        targets: ``[num_samples, ...]`` of any dtype, or a ``LazyTensor`` of them.
        mean: subtracted from inputs / 255; None leaves the inputs as they are.
        std: divides after ``mean``; above 0.
        widen: give integer inputs and targets as int64, however they are stored.

    Raises:
        DataError: inputs and targets are not equally many.

    Example:
        >>> import torch
        >>> from freewheel.streams.base import TensorSplit
        >>> split = TensorSplit(torch.tensor([[0], [255]], dtype=torch.uint8), torch.arange(2), 0.5)
        >>> split.inputs(torch.tensor([1, 0]))
        tensor([[ 0.5000],
                [-0.5000]])
        >>> split.targets(torch.tensor([1]))
        tensor([1])
    """

    repeatable = True

    def __init__(
        self,
        inputs: Tensor | LazyTensor,
        targets: Tensor | LazyTensor,
        mean: float | None = None,
        std: float = 1.0,
        widen: bool = False,
    ) -> None:
        self._inputs = _lazy(inputs)
        self._targets = _lazy(targets)
        self._mean, self._std, self._widen = mean, std, widen
        if self._inputs.num_samples != self._targets.num_samples:
            raise DataError(
                f"{self._inputs.num_samples} inputs but {self._targets.num_samples} targets; "
                "each sample needs one of each: check what the two tensors were made from"
            )

    def __len__(self) -> int:
        return self._inputs.num_samples

    def inputs(self, indices: Tensor) -> Tensor:
        """Return the inputs ``[batch, ...]`` of these samples."""
        picked = self._inputs.get().index_select(0, indices)
        if self._mean is not None:
            scale = 1.0 / (255.0 * self._std)
            return picked.to(torch.float32).mul_(scale).sub_(self._mean / self._std)
        return _widened(picked) if self._widen else picked

    def targets(self, indices: Tensor) -> Tensor:
        """Return the targets ``[batch, ...]`` of these samples."""
        picked = self._targets.get().index_select(0, indices)
        return _widened(picked) if self._widen else picked


class SubsetSplit:
    """Some samples of another split, numbered anew from 0.

    Args:
        split: the other split.
        indices: int64 ``[num_samples]``, numbers of the samples in it.

    Raises:
        DataError: a number is outside the other split.

    Example:
        >>> import torch
        >>> from freewheel.streams.base import SubsetSplit, TensorSplit
        >>> whole = TensorSplit(torch.arange(6), torch.arange(6))
        >>> odd = SubsetSplit(whole, torch.tensor([1, 3, 5]))
        >>> odd.inputs(torch.tensor([0, 2]))
        tensor([1, 5])
    """

    def __init__(self, split: Split, indices: Tensor) -> None:
        if len(indices) and not (int(indices.min()) >= 0 and int(indices.max()) < len(split)):
            raise DataError(
                f"samples {int(indices.min())} to {int(indices.max())} were asked of a data set "
                f"that has samples 0 to {len(split) - 1}: check the list of indices"
            )
        self._split, self._indices = split, indices
        self.repeatable = is_repeatable(split)

    def __len__(self) -> int:
        return len(self._indices)

    def inputs(self, indices: Tensor) -> Any:
        """Return the inputs of these samples."""
        return self._split.inputs(self._indices[indices])

    def targets(self, indices: Tensor) -> Any:
        """Return the targets of these samples."""
        return self._split.targets(self._indices[indices])


def is_repeatable(split: Split) -> bool:
    """Whether a split's samples may be asked for ahead of their time; see ``Split``.

    Example:
        >>> import torch
        >>> from freewheel.streams.base import TensorSplit, is_repeatable
        >>> is_repeatable(TensorSplit(torch.zeros(3, 2), torch.zeros(3)))
        True
    """
    return bool(getattr(split, "repeatable", False))


def _lazy(value: Tensor | LazyTensor) -> LazyTensor:
    return value if isinstance(value, LazyTensor) else LazyTensor(len(value), lambda: value)


def _widened(value: Tensor) -> Tensor:
    return value if value.is_floating_point() else value.to(torch.int64)
