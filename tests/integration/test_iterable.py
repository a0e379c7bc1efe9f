"""Iterable data over ranks and loader workers (real processes): each item exactly once."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import count

import pytest
import torch
from torch.utils.data import IterableDataset

from freewheel.errors import CheckpointError, ConfigError, DataError
from freewheel.streams import IterableBatch, IterableStream

pytestmark = [
    # Said by Python >= 3.12 and by torch on machines of one core, of any loader worker.
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

Pair = tuple[torch.Tensor, int]


class Numbers(IterableDataset[Pair]):
    """The numbers below ``size``, in an order that depends on the epoch."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Pair]:
        for place in range(self.size):
            number = (place + 3 * self.epoch) % self.size
            yield torch.tensor([float(number)]), number


def ranks(
    size: int, batch_size: int, world_size: int, num_loader_workers: int
) -> list[IterableStream]:
    return [
        IterableStream(Numbers(size), batch_size, rank, world_size, num_loader_workers)
        for rank in range(world_size)
    ]


def note(taken: dict[int, Counter[int]], batch: IterableBatch) -> None:
    assert batch.inputs.shape == (batch.num_samples, 1)
    assert batch.inputs.flatten().tolist() == batch.targets.tolist()
    taken[batch.epoch].update(batch.targets.tolist())


@pytest.mark.parametrize("num_loader_workers", [0, 1, 3])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_scenario_5_each_item_once(world_size: int, num_loader_workers: int) -> None:
    size, batch_size = 29, 3
    streams = ranks(size, batch_size, world_size, num_loader_workers)
    taken: dict[int, Counter[int]] = defaultdict(Counter)
    rounds_of_epoch = -(-size // (batch_size * world_size))
    for k in range(2 * rounds_of_epoch):
        batches = [stream.next() for stream in streams]
        total = sum(batch.num_samples for batch in batches)
        for batch in batches:
            note(taken, batch)
            assert batch.num_in_round == total
            assert (batch.epoch, batch.step_in_epoch) == divmod(k, rounds_of_epoch)
            assert batch.last_in_epoch == (k % rounds_of_epoch == rounds_of_epoch - 1)
    assert taken == {epoch: Counter(range(size)) for epoch in (0, 1)}


def test_items_come_in_the_order_of_the_data_whatever_the_workers() -> None:
    def order(num_loader_workers: int) -> list[int]:
        stream = IterableStream(Numbers(23), 4, num_loader_workers=num_loader_workers)
        return [number for _ in range(6) for number in stream.next().targets.tolist()]

    assert [order(workers) for workers in (0, 1, 2, 3)] == [list(range(23))] * 4


def test_scenario_6_stop_with_2_ranks_resume_with_3_then_1() -> None:
    taken: dict[int, Counter[int]] = defaultdict(Counter)
    state: dict[str, int] = {}
    steps = []
    for world_size, num_loader_workers, num_steps in ((2, 1, 3), (3, 2, 4), (1, 0, 17)):
        streams = ranks(40, 2, world_size, num_loader_workers)
        for stream in streams:
            if state:
                stream.load_state_dict(state)
        for _ in range(num_steps):
            for stream in streams:
                batch = stream.next()
                note(taken, batch)
            steps.append(batch.step_in_epoch)
        states = [stream.state_dict() for stream in streams]
        assert all(other == states[0] for other in states)
        state = states[0]
        for stream in streams:
            stream.close()
    # 12 items by 2 ranks and 24 by 3; 4 to end the epoch; 30 of the next.
    assert steps == [*range(3), *range(3, 7), *range(7, 9), *range(15)]
    assert taken[0] == Counter(range(40))
    assert taken[1] == Counter((place + 3) % 40 for place in range(30))
    assert state == {"format": 1, "epoch": 1, "num_items": 30, "rounds_done": 15}


def test_a_batch_that_was_read_ahead_but_not_taken_is_not_skipped() -> None:
    stream = IterableStream(Numbers(64), 2, num_loader_workers=2)
    first = stream.next().targets.tolist()
    resumed = IterableStream(Numbers(64), 2, num_loader_workers=1)
    resumed.load_state_dict(stream.state_dict())
    assert first + resumed.next().targets.tolist() == [0, 1, 2, 3]


def test_functions_and_lists_will_do_and_data_may_be_endless() -> None:
    def endless() -> Iterator[tuple[int, int]]:
        return ((n, -n) for n in count())

    stream = IterableStream(endless, 4, rank=1, world_size=2, num_loader_workers=1)
    assert [stream.next().targets.tolist() for _ in range(2)] == [
        [-4, -5, -6, -7],
        [-12, -13, -14, -15],
    ]
    assert IterableStream([(1.0, 2)], 4).next().last_in_epoch


def test_reading_leaves_the_global_random_state_alone() -> None:
    before = torch.get_rng_state()
    IterableStream(Numbers(4), 2, num_loader_workers=1).next()
    assert torch.equal(torch.get_rng_state(), before)


KILLED = """
import os, signal
from freewheel.streams import IterableStream

def deadly():
    for number in range(100):
        if number == 6:
            os.kill(os.getpid(), signal.SIGKILL)
        yield 0.0, number

stream = IterableStream(deadly, 2, num_loader_workers=1, timeout_s=60)
while True:
    stream.next()
"""


def test_a_killed_loader_worker_ends_the_process_that_reads() -> None:
    # In a process of its own: torch may raise from its SIGCHLD handler, at any moment.
    ended = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 1
    assert re.search(r"a loader worker died|DataLoader worker .* killed by signal", ended.stderr)


def test_an_error_of_the_users_reader_comes_through() -> None:
    def broken() -> Iterator[Pair]:
        yield torch.zeros(1), 0
        raise RuntimeError("disk on fire")

    for num_loader_workers in (0, 1):
        stream = IterableStream(broken, 1, num_loader_workers=num_loader_workers)
        with pytest.raises(RuntimeError, match="disk on fire"):
            stream.next()


@pytest.mark.parametrize("num_loader_workers", [0, 1])
def test_no_items_and_items_that_are_no_pairs_are_refused(num_loader_workers: int) -> None:
    with pytest.raises(DataError, match="no item after the first 0 of epoch 0"):
        IterableStream([], 2, num_loader_workers=num_loader_workers).next()
    with pytest.raises(DataError, match="round 0: a sample must be a pair"):
        IterableStream([1, 2], 2, num_loader_workers=num_loader_workers).next()


def test_data_that_has_shrunk_is_refused() -> None:
    stream = IterableStream(Numbers(3), 2)
    stream.load_state_dict({"format": 1, "epoch": 4, "num_items": 8, "rounds_done": 4})
    with pytest.raises(DataError, match="no item after the first 8 of epoch 4"):
        stream.next()


def test_an_iterator_that_runs_once_is_refused() -> None:
    with pytest.raises(DataError, match="a generator can be read only once"):
        IterableStream(((n, n) for n in range(3)), 1)


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"format": 2, "epoch": 0, "num_items": 0, "rounds_done": 0},
        {"format": 1, "epoch": 0, "num_items": -1, "rounds_done": 0},
        {"format": 1, "epoch": "0", "num_items": 0, "rounds_done": 0},
    ],
)
def test_a_damaged_cursor_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match="cursor of iterable data needs"):
        IterableStream(Numbers(3), 2).load_state_dict(state)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size must be >= 1, got 0"),
        ({"batch_size": 1, "rank": 1}, "rank 1 of 1"),
        ({"batch_size": 1, "num_loader_workers": -1}, "num_loader_workers must be >= 0"),
        ({"batch_size": 1, "timeout_s": 0}, "timeout_s > 0"),
    ],
)
def test_numbers_out_of_range_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IterableStream(Numbers(3), **settings)
