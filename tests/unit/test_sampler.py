"""Every sample once an epoch, for any number of workers, in step or not, stopped and resumed."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

import msgpack
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freewheel.errors import CheckpointError, ConfigError, DataError
from freewheel.streams import Batch, RoundSampler, Sampler, ShardSampler
from freewheel.streams.cursor import epoch_order

Taken = dict[int, Counter[int]]


def team(num_samples: int, batch_size: int, world_size: int, **more: object) -> list[Sampler]:
    return [
        Sampler(num_samples, batch_size, seed=5, rank=rank, world_size=world_size, **more)
        for rank in range(world_size)
    ]


def sizes(samplers: Sequence[RoundSampler], num_rounds: int) -> list[list[int]]:
    return [[len(s.next().indices) for s in samplers] for _ in range(num_rounds)]


def note(taken: Taken, batch: Batch) -> None:
    taken[batch.epoch].update(batch.indices.tolist())


def test_scenario_1_last_batches_are_smaller() -> None:
    assert sizes(team(21, 8, 1), 4) == [[8], [8], [5], [8]]
    assert sizes(team(17, 8, 1), 3) == [[8], [8], [1]]


def test_last_round_may_leave_workers_without_samples() -> None:
    assert sizes(team(21, 8, 2), 3) == [[8, 8], [5, 0], [8, 8]]
    assert sizes(team(1, 4, 3), 2) == [[1, 0, 0], [1, 0, 0]]
    batch = team(1, 4, 3)[2].next()
    assert batch.indices.dtype == torch.int64
    assert batch.indices.shape == (0,)
    assert batch.last_in_epoch
    assert batch.num_in_round == 1


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 5))
def test_a_round_of_n_workers_is_one_batch_of_n_times_the_size(
    num_samples: int, batch_size: int, world_size: int
) -> None:
    many = team(num_samples, batch_size, world_size)
    one = Sampler(num_samples, batch_size * world_size, seed=5)
    for _ in range(2 * one.steps_per_epoch + 1):
        parts, whole = [s.next() for s in many], one.next()
        assert torch.cat([part.indices for part in parts]).tolist() == whole.indices.tolist()
        for part in parts:
            assert (part.epoch, part.step_in_epoch) == (whole.epoch, whole.step_in_epoch)
            assert part.last_in_epoch == whole.last_in_epoch
            assert part.num_in_round == len(whole.indices)


def test_epochs_are_permutations_that_differ_and_depend_on_the_seed() -> None:
    def epochs(seed: int) -> list[list[int]]:
        sampler = Sampler(50, 50, seed=seed)
        return [sampler.next().indices.tolist() for _ in range(3)]

    first = epochs(1)
    assert all(sorted(epoch) == list(range(50)) for epoch in first)
    assert len({tuple(epoch) for epoch in first}) == 3
    assert epochs(1) == first
    assert epochs(2) != first


def test_without_shuffling_samples_come_in_order() -> None:
    sampler = Sampler(5, 2, seed=0, shuffle=False)
    assert [sampler.next().indices.tolist() for _ in range(4)] == [[0, 1], [2, 3], [4], [0, 1]]


def test_only_the_given_samples_are_taken() -> None:
    sampler = Sampler(100, 2, seed=0, indices=torch.tensor([97, 3, 40]))
    epoch = sampler.next().indices.tolist() + sampler.next().indices.tolist()
    assert sorted(epoch) == [3, 40, 97]


def test_scenario_6_stop_with_2_workers_resume_with_3_then_1() -> None:
    taken: Taken = defaultdict(Counter)
    two = team(40, 3, 2)
    for _ in range(5):  # 30 of 40
        for sampler in two:
            note(taken, sampler.next())
    states = [sampler.state_dict() for sampler in two]
    assert states[0] == states[1]

    three = team(40, 3, 3)
    for sampler in three:
        sampler.load_state_dict(states[0])
    steps = []
    for _ in range(3):  # 9, 1 | 9
        for sampler in three:
            batch = sampler.next()
            note(taken, batch)
        steps.append((batch.epoch, batch.step_in_epoch, batch.last_in_epoch))
    assert steps == [(0, 5, False), (0, 6, True), (1, 0, False)]

    one = Sampler(40, 3, seed=5)
    one.load_state_dict(three[2].state_dict())
    for _ in range(11):  # 31 = 10 * 3 + 1
        batch = one.next()
        note(taken, batch)
    assert batch.last_in_epoch
    assert taken == {epoch: Counter(range(40)) for epoch in (0, 1)}


def test_the_order_is_kept_over_a_resume_with_as_many_workers() -> None:
    through = Sampler(23, 4, seed=5)
    expected = [through.next().indices.tolist() for _ in range(15)]
    stopped = Sampler(23, 4, seed=5)
    got = [stopped.next().indices.tolist() for _ in range(8)]
    resumed = Sampler(23, 4, seed=5)
    resumed.load_state_dict(stopped.state_dict())
    assert got + [resumed.next().indices.tolist() for _ in range(7)] == expected


def shards_of(num_samples: int, world_size: int, salt: int) -> list[torch.Tensor]:
    owner = torch.randint(world_size, (num_samples,), generator=torch.Generator().manual_seed(salt))
    return [(owner == rank).nonzero().flatten() for rank in range(world_size)]


def make_plain(num_samples: int, batch_size: int, world_size: int) -> list[RoundSampler]:
    return list(team(num_samples, batch_size, world_size))


def make_shards(num_samples: int, batch_size: int, world_size: int) -> list[RoundSampler]:
    shards = shards_of(num_samples, world_size, salt=world_size)
    return [ShardSampler(shards, batch_size, seed=5, rank=rank) for rank in range(world_size)]


Maker = Callable[[int, int, int], list[RoundSampler]]


@pytest.mark.parametrize("make", [make_plain, make_shards])
@settings(max_examples=40, deadline=None)
@given(
    num_samples=st.integers(1, 40),
    legs=st.lists(
        st.tuples(st.integers(1, 5), st.lists(st.integers(0, 9), min_size=4, max_size=4)),
        min_size=1,
        max_size=4,
    ),
)
def test_every_sample_once_an_epoch_however_often_stopped(
    make: Maker, num_samples: int, legs: list[tuple[int, list[int]]]
) -> None:
    """Workers out of step (asynchronous), stopped at any moment, resumed with any number."""
    taken: Taken = defaultdict(Counter)
    state = None
    for batch_size, steps in legs:
        world_size = 1 + steps[0] % 3
        samplers = make(num_samples, batch_size, world_size)
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        for sampler, num_steps in zip(samplers, steps, strict=False):
            for _ in range(num_steps):
                note(taken, sampler.next())
        state = json.loads(json.dumps(samplers[-1].state_at(steps[:world_size])))
    last = make(num_samples, 3, 2)
    for sampler in last:
        sampler.load_state_dict(state)
    end = max([*taken, 0])
    for sampler in last:
        batch = sampler.next()
        while batch.epoch <= end:
            note(taken, batch)
            batch = sampler.next()
    assert taken == {epoch: Counter(range(num_samples)) for epoch in range(end + 1)}


def test_scenario_2_shards_of_3_and_2_batches_end_together() -> None:
    shards = [torch.arange(0, 12), torch.arange(12, 19)]  # 4 + 4 + 4 and 4 + 3
    pair = [ShardSampler(shards, 4, seed=1, rank=rank) for rank in range(2)]
    assert [sampler.steps_per_epoch for sampler in pair] == [3, 3]
    rounds = [[sampler.next() for sampler in pair] for _ in range(3)]
    assert [[len(b.indices) for b in batches] for batches in rounds] == [[4, 4], [4, 3], [4, 0]]
    assert [batches[0].num_in_round for batches in rounds] == [8, 7, 4]
    assert [[b.last_in_epoch for b in batches] for batches in rounds] == [
        [False, False],
        [False, False],
        [True, True],
    ]
    for rank in range(2):
        mine = torch.cat([batches[rank].indices for batches in rounds])
        assert sorted(mine.tolist()) == shards[rank].tolist()


def test_scenario_3_an_empty_shard_gets_empty_batches_and_none_at_all_is_refused() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    idle = ShardSampler([torch.arange(4), nothing], 2, seed=1, rank=1)
    assert [(len(b.indices), b.epoch) for b in (idle.next(), idle.next(), idle.next())] == [
        (0, 0),
        (0, 0),
        (0, 1),
    ]
    with pytest.raises(DataError, match="no samples to train on"):
        ShardSampler([nothing, nothing], 2, seed=1)


def test_shards_keep_to_their_worker_after_a_resume() -> None:
    def make(rank: int) -> ShardSampler:
        return ShardSampler([torch.arange(0, 10), torch.arange(10, 16)], 2, seed=1, rank=rank)

    first, second = make(0), make(1)
    early = first.next().indices.tolist()
    state = second.state_at([1, 0])
    resumed = [make(0), make(1)]
    for sampler in resumed:
        sampler.load_state_dict(state)
    rest = [sampler.next() for sampler in resumed for _ in range(4)]
    zero = early + [i for batch in rest[:4] for i in batch.indices.tolist()]
    one = [i for batch in rest[4:] for i in batch.indices.tolist()]
    assert sorted(zero) == list(range(10))
    assert sorted(one) == list(range(10, 16))


def test_the_cursor_is_small_and_fits_json_and_msgpack() -> None:
    sampler = Sampler(1_000_000, 64, seed=5, world_size=4)
    for _ in range(100):
        sampler.next()
    state = sampler.state_dict()
    assert len(json.dumps(state)) < 1_000
    again = Sampler(1_000_000, 64, seed=5, world_size=4)
    again.load_state_dict(msgpack.unpackb(msgpack.packb(state)))
    assert again.next().indices.tolist() == sampler.next().indices.tolist()


def test_the_cursor_after_many_epochs_is_that_of_a_sampler_that_walked_there() -> None:
    walked = [Sampler(10, 2, seed=5, rank=rank, world_size=2) for rank in range(2)]
    for _ in range(3 * 200 + 1):
        walked[0].next()
    rest = Sampler(10, 10, seed=5)
    rest.load_state_dict(walked[1].state_at([601, 600]))
    batch, epoch_200 = rest.next(), epoch_order(10, 5, 200, True)
    assert (batch.epoch, batch.step_in_epoch) == (200, 0)
    assert batch.indices.tolist() == epoch_200[2:].tolist()
    assert rest.next().epoch == 201


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (Sampler(21, 2, seed=5), "num_samples = 20, now it is 21"),
        (Sampler(20, 2, seed=6), "seed = 5, now it is 6"),
        (Sampler(20, 2, seed=5, shuffle=False), "shuffle = True, now it is False"),
        (Sampler(30, 2, seed=5, indices=torch.arange(1, 21)), "samples = "),
    ],
)
def test_a_cursor_of_other_data_is_refused(other: Sampler, named: str) -> None:
    state = Sampler(20, 2, seed=5).state_dict()
    with pytest.raises(CheckpointError, match=named):
        other.load_state_dict(state)


def damaged_states() -> list[tuple[str, dict[str, object]]]:
    sampler = Sampler(20, 2, seed=5)
    sampler.next()
    state = sampler.state_dict()
    part = state["unfinished"][0]

    def with_part(**changes: object) -> dict[str, object]:
        return {**state, "unfinished": [{**part, **changes}]}

    return [
        ("format 9", {**state, "format": 9}),
        ("malformed", with_part(pending="%%%")),
        ("malformed", with_part(pending="AAAA")),
        ("malformed", {key: value for key, value in state.items() if key != "next_epoch"}),
        ("lists 18 .* counts 17", with_part(num_pending=17)),
    ]


@pytest.mark.parametrize(("message", "state"), damaged_states())
def test_a_damaged_cursor_is_refused(message: str, state: dict[str, object]) -> None:
    with pytest.raises(CheckpointError, match=message):
        Sampler(20, 2, seed=5).load_state_dict(state)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampler(4, 0, seed=0), "batch_size must be >= 1, got 0"),
        (lambda: Sampler(4, 1, seed=-1), "seed must be >= 0, got -1"),
        (lambda: Sampler(4, 1, seed=0, rank=2, world_size=2), "rank 2 of 2"),
        (lambda: Sampler(4, 1, seed=0).state_at([1, 1]), "each of 1 ranks"),
        (lambda: Sampler(4, 1, seed=0).state_at([-1]), ">= 0"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampler(0, 1, seed=0), "no samples to train on"),
        (lambda: Sampler(4, 1, seed=0, indices=torch.tensor([1, 4])), "from 0 to 3, got 1 to 4"),
        (lambda: Sampler(4, 1, seed=0, indices=torch.tensor([2, 2])), "sample 2 is listed 2 times"),
        (
            lambda: ShardSampler([torch.tensor([1, 2]), torch.tensor([2, 3])], 1, seed=0),
            "sample 2 is listed 2 times",
        ),
    ],
)
def test_samples_that_do_not_add_up_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()
