"""Data that can only be iterated, over several ranks and loader workers, each item once.

Every reader goes through all items in the same order and keeps its own: rank r takes the r-th
batch of each round, and of its batches loader worker w of M those with number w modulo M. Reading
is repeated, decoding and collating are not. The cursor counts items, so that a run goes on exactly
where it stopped, with any number of ranks and loader workers.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from freewheel.errors import CheckpointError, ConfigError, DataError
from freewheel.streams.dataset import collate_pairs, first_rows

_END = object()
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class IterableBatch:
    """One worker's samples for one step.

    Args:
        inputs: collated, ``num_samples`` in front; empty where this rank has none in the round.
        targets: likewise.
        num_samples: in this batch.
        epoch: from 0.
        step_in_epoch: from 0; the same on all ranks at the same round.
        last_in_epoch: the epoch ends with this round.
        num_in_round: samples that all ranks together take in this round, at least 1.
    """

    inputs: Any
    targets: Any
    num_samples: int
    epoch: int
    step_in_epoch: int
    last_in_epoch: bool
    num_in_round: int


class IterableStream:
    """Batches of iterable data, dealt out to ranks in rounds.

    The items must come in the same order in every process. Where the data is shuffled, let
    ``set_epoch(epoch)`` of it choose the order; it is called before each epoch where there is one.

    Args:
        items: gives (input, target) pairs: an ``IterableDataset``, any iterable that can be
            iterated anew, or a function that returns an iterator.
        batch_size: of one rank, at least 1.
        rank: of this process.
        world_size: ranks in all.
        num_loader_workers: processes that read for this rank; 0 reads in this one.
        timeout_s: longest wait for a batch of a loader worker.
        collate: makes a batch of a list of pairs.

    Raises:
        ConfigError: a number is out of its range.
        DataError: the items can be read only once; later, there are none, or one is not a pair.

    Example:
        >>> from freewheel.streams.iterable import IterableStream
        >>> pairs = [(float(i), i) for i in range(5)]
        >>> first, second = (IterableStream(pairs, 2, rank=rank, world_size=2) for rank in range(2))
        >>> [first.next().targets.tolist(), second.next().targets.tolist()]
        [[0, 1], [2, 3]]
        >>> [first.next().targets.tolist(), second.next().targets.tolist()]
        [[4], []]
    """

    def __init__(
        self,
        items: Iterable[Any] | Callable[[], Iterator[Any]],
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        num_loader_workers: int = 0,
        timeout_s: float = 300.0,
        collate: Callable[[list[Any]], Any] = default_collate,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be >= 1, got {batch_size}")
        if world_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(
                f"rank must be from 0 to world_size - 1, got rank {rank} of {world_size}"
            )
        if num_loader_workers < 0 or timeout_s <= 0:
            raise ConfigError(
                f"num_loader_workers must be >= 0 and timeout_s > 0, got {num_loader_workers} "
                f"and {timeout_s}"
            )
        if isinstance(items, Iterator):
            raise DataError(
                f"a {type(items).__name__} can be read only once, and every epoch and every "
                "loader worker reads from the start: give a function that returns one"
            )
        self._items = items
        self._share = _Share(batch_size, rank, world_size, collate)
        self._num_loader_workers, self._timeout_s = num_loader_workers, timeout_s
        self._epoch = self._num_items = self._rounds_done = 0
        self._batches: Iterator[_Round] | None = None

    def next(self) -> IterableBatch:
        """Return this rank's next batch; epochs follow one another without end.

        Raises:
            DataError: there are no items, one is not a pair, or a loader worker died or is silent.
        """
        if self._batches is None:
            self._batches = self._open()
        try:
            batch = next(self._batches)
        except StopIteration:
            raise DataError(
                f"the data has no item after the first {self._num_items} of epoch {self._epoch}; "
                "it must have at least 1, and as many as when the checkpoint was written"
            ) from None
        except Exception as error:
            self._end_loader(error)
            if self._num_loader_workers and _is_of_loader(error):
                raise DataError(f"a loader worker died or was silent too long: {error}") from error
            raise
        taken = IterableBatch(
            inputs=batch.value[0],
            targets=batch.value[1],
            num_samples=batch.num_samples,
            epoch=self._epoch,
            step_in_epoch=self._rounds_done,
            last_in_epoch=batch.last,
            num_in_round=batch.num_in_round,
        )
        self._num_items += batch.num_in_round
        self._rounds_done += 1
        if batch.last:
            self.close()
            self._epoch += 1
            self._num_items = self._rounds_done = 0
        return taken

    def __iter__(self) -> Iterator[IterableBatch]:
        while True:
            yield self.next()

    def state_dict(self) -> dict[str, int]:
        """Return the cursor of all ranks, which must have done as many steps as this one."""
        return {
            "format": _FORMAT,
            "epoch": self._epoch,
            "num_items": self._num_items,
            "rounds_done": self._rounds_done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a cursor, whatever the numbers of ranks and loader workers were.

        Raises:
            CheckpointError: the cursor is malformed.
        """
        names = ("format", "epoch", "num_items", "rounds_done")
        values = [state.get(name) for name in names]
        if any(type(v) is not int or v < 0 for v in values) or values[0] != _FORMAT:
            raise CheckpointError(
                f"a cursor of iterable data needs {', '.join(names)} as numbers >= 0 and format "
                f"{_FORMAT}, got {dict(state)}: the checkpoint is damaged or of another version"
            )
        self.close()
        self._epoch, self._num_items, self._rounds_done = (int(state[n]) for n in names[1:])

    def close(self) -> None:
        """End the loader workers; ``next`` starts new ones."""
        self._batches = None

    def _end_loader(self, error: Exception) -> None:
        self.close()
        if self._num_loader_workers:
            # The loader's frames keep it alive in a cycle; collected as garbage it would wait 5 s
            # for each of its workers.
            traceback.clear_frames(error.__traceback__)

    def _open(self) -> Iterator[_Round]:
        set_epoch = getattr(self._items, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self._epoch)
        rounds = _Rounds(self._items, self._share, self._num_items)
        loader = DataLoader(
            rounds,
            batch_size=None,
            num_workers=self._num_loader_workers,
            collate_fn=_as_it_is,
            timeout=self._timeout_s if self._num_loader_workers else 0,
            # A generator of its own, or the loader would advance torch's global one.
            generator=torch.Generator().manual_seed(self._epoch),
        )
        return iter(loader)


@dataclass(frozen=True, slots=True)
class _Share:
    """Which items of a round are one rank's, and how they are collated."""

    batch_size: int
    rank: int
    world_size: int
    collate: Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class _Round:
    value: Any
    num_samples: int
    num_in_round: int
    last: bool


class _Rounds(IterableDataset[_Round]):
    """One loader worker's rounds of one rank, after skipping what was taken before."""

    def __init__(self, items: Any, share: _Share, num_skipped: int) -> None:
        self._items, self._share, self._num_skipped = items, share, num_skipped

    def __iter__(self) -> Iterator[_Round]:
        worker = get_worker_info()
        number, num_workers = (worker.id, worker.num_workers) if worker else (0, 1)
        items = iter(self._items() if callable(self._items) else self._items)
        for _ in range(self._num_skipped):
            next(items, _END)
        share = self._share
        start = share.rank * share.batch_size
        mine = range(start, start + share.batch_size)
        upcoming, k = next(items, _END), 0
        while upcoming is not _END:
            kept, first, place = [], upcoming, 0
            wanted = k % num_workers == number
            while upcoming is not _END and place < share.world_size * share.batch_size:
                if wanted and place in mine:
                    kept.append(upcoming)
                place += 1
                upcoming = next(items, _END)
            if wanted:
                value = collate_pairs(kept or [first], share.collate, f"round {k}")
                value = value if kept else first_rows(value, 0)
                yield _Round(value, len(kept), place, upcoming is _END)
            k += 1


def _is_of_loader(error: Exception) -> bool:
    # What the user's reader raised in a worker arrives as "Caught ..."; a worker that dies while
    # it hands a tensor over leaves a broken connection.
    return str(error).startswith("DataLoader") or (
        isinstance(error, OSError | EOFError) and not str(error).startswith("Caught ")
    )


def _as_it_is(value: Any) -> Any:
    return value
