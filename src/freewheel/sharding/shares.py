"""How many samples each worker gets, and the order in which samples are dealt to workers."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import ConfigError
from freewheel.sharding.samples import Indices


def shard_sizes(num_samples: int, workers: int, speeds: Sequence[float] | None = None) -> Indices:
    """Return how many samples each worker gets; the sum is ``num_samples``.

    Equal workers differ by at most one. With speeds v, worker w gets N v_w / sum(v) samples,
    rounded by largest remainder, so that all finish an epoch at about the same time.

    Args:
        num_samples: N.
        workers: how many workers, at least 1.
        speeds: samples per second of each worker, in any unit; None for equal workers.

    Returns:
        int64, shape (workers,).

    Raises:
        ConfigError: no workers, another number of speeds than workers, or a speed that is not
            positive and finite.

    Example:
        >>> from freewheel.sharding.shares import shard_sizes
        >>> shard_sizes(10, 4).tolist(), shard_sizes(10, 3, [1, 1, 2]).tolist()
        ([3, 3, 2, 2], [3, 2, 5])
    """
    if isinstance(workers, bool) or not isinstance(workers, int | np.integer) or workers < 1:
        raise ConfigError(f"workers must be an integer >= 1, got {workers!r}")
    if speeds is None:
        even: Indices = num_samples // workers + (np.arange(workers) < num_samples % workers)
        return even
    rates = np.asarray(speeds, dtype=np.float64)
    if rates.shape != (workers,):
        raise ConfigError(
            f"speeds must have one value per worker: got {rates.size} for {workers} workers"
        )
    if not (np.isfinite(rates).all() and (rates > 0).all()):
        raise ConfigError(f"speeds must be positive and finite, got {rates.tolist()}")
    exact = num_samples * rates / rates.sum()
    sizes: Indices = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(sizes - exact, kind="stable")
    sizes[by_remainder[: num_samples - sizes.sum()]] += 1
    return sizes


def deal(order: Indices, sizes: Indices) -> NDArray[np.int32]:
    """Deal samples, in this order, to workers so that any run of them is shared in proportion.

    Equal workers are served in turn (round robin): in any run of samples, such as one class, their
    counts differ by at most 1. Otherwise each place goes to the worker whose next sample is due
    first: after t places worker w has had more than t n_w / N - 1 and fewer than t n_w / N + 1
    samples, so that in any run its count is within 2 of its share.

    Args:
        order: a permutation of 0..N-1, samples that are alike standing together.
        sizes: samples per worker, sum N.

    Returns:
        The worker of each sample, shape (N,).

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.shares import deal
        >>> deal(np.arange(6), np.array([2, 2, 2])).tolist()
        [0, 1, 2, 0, 1, 2]
        >>> deal(np.arange(6), np.array([4, 2])).tolist()
        [0, 0, 1, 0, 0, 1]

    References:
        Baruah, Cohen, Plaxton, Varvel, "Proportionate progress" (1996): places are slots of one
        machine, samples are tasks with earliest and latest slots, the earliest deadline goes first.
    """
    owner = np.empty(len(order), dtype=np.int32)
    even = np.array_equal(sizes, shard_sizes(len(order), len(sizes)))
    owner[order] = np.arange(len(order)) % len(sizes) if even else _turns(sizes)
    return owner


def _turns(sizes: Indices) -> NDArray[np.int32]:
    counts = sizes.tolist()
    total = sum(counts)
    turns = np.empty(total, dtype=np.int32)
    served = [0] * len(counts)
    waiting = [(0, worker) for worker, count in enumerate(counts) if count]
    ready: list[tuple[int, int]] = []
    for place in range(total):
        while waiting and waiting[0][0] <= place:
            worker = heapq.heappop(waiting)[1]
            due = -(-(served[worker] + 1) * total // counts[worker])
            heapq.heappush(ready, (due, worker))
        worker = heapq.heappop(ready)[1]
        turns[place] = worker
        served[worker] += 1
        if served[worker] < counts[worker]:
            heapq.heappush(waiting, (served[worker] * total // counts[worker], worker))
    return turns


def split_by_owner(owner: NDArray[np.integer], workers: int) -> list[Indices]:
    """Return each worker's samples in ascending order, from the worker of each sample.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.shares import split_by_owner
        >>> [shard.tolist() for shard in split_by_owner(np.array([1, 0, 1]), 3)]
        [[1], [0, 2], []]
    """
    order = np.argsort(owner, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(np.bincount(owner, minlength=workers))[:-1])


def cut(order: Indices, sizes: Indices) -> list[Indices]:
    """Cut an order of samples into consecutive shards of these sizes, each sorted.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.shares import cut
        >>> [part.tolist() for part in cut(np.array([2, 0, 1]), np.array([2, 1]))]
        [[0, 2], [1]]
    """
    return [np.sort(part) for part in np.split(order, np.cumsum(sizes)[:-1])]
