"""A map-style ``torch.utils.data.Dataset`` of (input, target) pairs, as a split."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch import Tensor
from torch.utils.data import default_collate

from freewheel.errors import ConfigError, DataError

# Micro-batches ask for all their inputs and then for all their targets: as many are remembered.
_NUM_REMEMBERED = 16


class DatasetSplit:
    """Samples of a map-style dataset, fetched when asked for and collated as a ``DataLoader`` does.

    The last few batches are remembered, so that asking for the inputs and then the targets of the
    same samples reads them once. A dataset with random transforms draws them where it is read: a
    pipeline's first and last stage each draw their own, so targets must not depend on them.

    Args:
        dataset: has ``__len__`` and ``__getitem__``, giving pairs; ``__getitems__`` is used where
            there is one.
        num_workers: threads that fetch samples at the same time; 0 fetches in the caller's.
        collate: makes a batch of a list of samples.

    Raises:
        ConfigError: ``num_workers`` is negative.
        DataError: it is no map-style dataset; later, a sample is not a pair or cannot be collated.

    Example:
        >>> import torch
        >>> from freewheel.streams.dataset import DatasetSplit
        >>> split = DatasetSplit([(torch.tensor([1.0]), 0), (torch.tensor([2.0]), 1)])
        >>> split.inputs(torch.tensor([1, 0])), split.targets(torch.tensor([1, 0]))
        (tensor([[2.],
                [1.]]), tensor([1, 0]))
    """

    def __init__(
        self,
        dataset: Any,
        num_workers: int = 0,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        if num_workers < 0:
            raise ConfigError(f"num_workers must be >= 0, got {num_workers}")
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise DataError(
                f"{type(dataset).__name__} is no map-style dataset: it needs __len__ and "
                "__getitem__; for one that can only be iterated use IterableStream"
            )
        self._dataset, self._collate, self._num_workers = dataset, collate, num_workers
        self._pool: ThreadPoolExecutor | None = None
        self._remembered: OrderedDict[tuple[int, ...], Sequence[Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._dataset)

    def inputs(self, indices: Tensor) -> Any:
        """Return the inputs of these samples, collated."""
        return self._batch(indices)[0]

    def targets(self, indices: Tensor) -> Any:
        """Return the targets of these samples, collated."""
        return self._batch(indices)[1]

    def _batch(self, indices: Tensor) -> Sequence[Any]:
        numbers = tuple(indices.tolist())
        if numbers in self._remembered:
            self._remembered.move_to_end(numbers)
            return self._remembered[numbers]
        if numbers:
            batch = self._collated(self._fetch(numbers), numbers)
        else:
            # An empty batch has the shapes and dtypes of any other.
            batch = first_rows(self._collated(self._fetch((0,)), (0,)), 0)
        self._remembered[numbers] = batch
        if len(self._remembered) > _NUM_REMEMBERED:
            self._remembered.popitem(last=False)
        return batch

    def _fetch(self, numbers: tuple[int, ...]) -> list[Any]:
        if hasattr(self._dataset, "__getitems__"):
            return list(self._dataset.__getitems__(list(numbers)))
        if self._num_workers == 0:
            return [self._dataset[number] for number in numbers]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._num_workers, "freewheel-data")
        return list(self._pool.map(self._dataset.__getitem__, numbers))

    def _collated(self, samples: list[Any], numbers: tuple[int, ...]) -> Sequence[Any]:
        return collate_pairs(samples, self._collate, f"samples {list(numbers[:8])}")


def collate_pairs(
    samples: list[Any], collate: Callable[[list[Any]], Any], what: str
) -> Sequence[Any]:
    """Make one batch of (input, target) pairs.

    Args:
        samples: at least one pair.
        collate: makes a batch of a list of samples.
        what: names the samples in messages.

    Returns:
        The inputs and the targets.

    Raises:
        DataError: a sample is not a pair, or the samples do not fit together.

    Example:
        >>> from torch.utils.data import default_collate
        >>> from freewheel.streams.dataset import collate_pairs
        >>> collate_pairs([(1.0, 2), (3.0, 4)], default_collate, "samples 0, 1")
        [tensor([1., 3.], dtype=torch.float64), tensor([2, 4])]
    """
    for sample in samples:
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            size = f" of {len(sample)}" if isinstance(sample, tuple | list) else ""
            raise DataError(
                f"{what}: a sample must be a pair (input, target), got a "
                f"{type(sample).__name__}{size}; where there are several inputs, put them in a "
                "tuple or dict: ((a, b), target)"
            )
    try:
        batch: Sequence[Any] = collate(samples)
    except (TypeError, RuntimeError, ValueError, KeyError) as error:
        raise DataError(
            f"{what}: cannot be put into one batch ({error}); samples need the same shapes and "
            "keys: pad them, or give a collate function"
        ) from error
    return batch


def first_rows(value: Any, num_rows: int) -> Any:
    """Return the first samples of a collated batch: of each tensor or list in it.

    Example:
        >>> import torch
        >>> from freewheel.streams.dataset import first_rows
        >>> first_rows([{"x": torch.zeros(3, 2)}, ["a", "b", "c"]], 1)
        [{'x': tensor([[0., 0.]])}, ['a']]
    """
    if isinstance(value, Tensor):
        return value[:num_rows]
    if isinstance(value, dict):
        return {key: first_rows(item, num_rows) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(first_rows(item, num_rows) for item in value))
    if isinstance(value, list | tuple):
        if all(isinstance(item, str | bytes) for item in value):
            return value[:num_rows]  # default_collate leaves text as a list of samples
        return type(value)(first_rows(item, num_rows) for item in value)
    return value
