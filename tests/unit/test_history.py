"""History: what is kept, within which memory."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save

from freewheel.errors import CheckpointError, NonFiniteError
from freewheel.predictors import History, predictors


def state(value: float, size: int = 4) -> torch.Tensor:
    return torch.full((size,), float(value))


def filled(num_steps: int, **settings) -> History:
    history = History(**settings)
    for clock in range(1, num_steps + 1):
        history.observe(clock, state(clock), loss=1.0 / clock, norms={"gradient": clock * 2.0})
    return history


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("every", [1, 3])
def test_memory_never_exceeds_its_bound(mean: bool, every: int) -> None:
    history = History(max_copies=4, every=every, mean=mean)
    for clock in range(50):
        history.observe(clock, state(clock, size=1000))
        assert history.num_bytes <= 4 * 1000 * 4
    assert history.copies == 4.0
    assert len(history.states) == 4 - mean


def test_snapshots_are_the_last_of_each_group() -> None:
    history = filled(11, max_copies=3, every=2)
    assert history.clocks == (6, 8, 10)
    assert [float(each[0]) for each in history.states] == [6.0, 8.0, 10.0]


def test_means_are_those_of_each_group() -> None:
    history = filled(11, max_copies=4, every=3, mean=True)
    assert history.clocks == (2, 5, 8)
    assert [float(each[0]) for each in history.states] == [2.0, 5.0, 8.0]


def test_a_snapshot_is_a_copy() -> None:
    history, live = History(), state(1)
    history.observe(1, live)
    live.zero_()
    assert float(history.states[0][0]) == 1.0


def test_summary_is_plain_numbers_from_arithmetic() -> None:
    summary = filled(4, max_copies=3).summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == {
        "num_observed": 4,
        "num_snapshots": 3,
        "num_non_finite": 0,
        "copies": 3.0,
        "num_bytes": 3 * 4 * 4,
        "first_clock": 1,
        "last_clock": 4,
        "loss_last": 0.25,
        "loss_mean": (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4,
        "loss_lowest": 0.25,
        "state_norm": 8.0,  # four times 4
        "move_norm": 2.0,  # four times 1
        "straightness": 1.0,
        "norm.gradient": 8.0,
    }


def test_summary_of_nothing() -> None:
    summary = History().summary()
    assert summary["num_observed"] == 0
    assert summary["loss_mean"] is None
    assert summary["straightness"] is None


def test_straightness_of_a_right_angle_and_of_a_walk_back() -> None:
    history = History()
    for clock, point in enumerate([[0.0, 0.0], [3.0, 0.0], [3.0, 4.0]]):
        history.observe(clock, torch.tensor(point))
    assert history.straightness() == pytest.approx(5 / 7)
    for clock, point in enumerate([[3.0, 0.0], [0.0, 0.0]], 3):
        history.observe(clock, torch.tensor(point))
    assert history.straightness() == 0.0


def test_a_state_that_is_not_finite_is_refused_and_leaves_no_trace() -> None:
    history = filled(3)
    before = history.summary()
    with pytest.raises(NonFiniteError, match="clock 9"):
        history.observe(9, torch.tensor([1.0, float("nan"), 1.0, 1.0]), loss=0.1)
    assert history.summary() == before


def test_a_loss_that_is_not_finite_is_counted() -> None:
    history = History()
    history.observe(1, state(1), loss=float("nan"), norms={"gradient": float("inf")})
    history.observe(2, state(2), loss=0.5)
    assert history.losses == ((2, 0.5),)
    assert history.norms == {"gradient": ()}
    assert history.summary()["num_non_finite"] == 2


@pytest.mark.parametrize("clock", [3, 2])
@pytest.mark.parametrize("given", [None, state(1)])
def test_a_clock_that_does_not_grow_is_refused(clock: int, given: torch.Tensor | None) -> None:
    with pytest.raises(ValueError, match="clock"):
        filled(3).observe(clock, given)


def test_a_state_of_another_size_is_refused_also_while_a_mean_is_under_way() -> None:
    history = History(every=2, mean=True)
    history.observe(1, state(1))
    with pytest.raises(ValueError, match="reset"):
        history.observe(2, state(1, size=5))


def test_losses_alone_and_a_stage_without_parameters() -> None:
    history = History(max_points=2)
    for clock in range(3):
        history.observe(clock, loss=float(clock))
    assert history.losses == ((1, 1.0), (2, 2.0))
    history.observe(3, torch.zeros(0))
    assert history.summary()["state_norm"] == 0.0
    assert history.num_bytes == 0


def test_roll_back_forgets_what_came_after() -> None:
    history = filled(6)
    history.roll_back(4)
    assert history.clocks == (1, 2, 3, 4)
    assert history.losses[-1] == (4, 0.25)
    assert history.norms["gradient"][-1] == (4, 8.0)
    history.observe(5, state(50))
    assert float(history.states[-1][0]) == 50.0
    history.roll_back(0)
    assert history.clocks == ()
    history.observe(1, state(1))
    assert history.summary()["first_clock"] == 1


def test_roll_back_drops_the_mean_under_way() -> None:
    history = filled(5, every=2, mean=True)
    history.roll_back(4)
    history.observe(5, state(10))
    history.observe(6, state(20))
    assert float(history.states[-1][0]) == 15.0


def test_feed_shows_the_snapshots_to_a_predictor() -> None:
    predictor = predictors.create("velocity", {"estimate": "last"})
    history = filled(6)
    history.feed(predictor)
    assert predictor.predict(2).tolist() == [8.0] * 4
    history.feed(predictor, until=3)
    assert predictor.predict(2).tolist() == [5.0] * 4


@pytest.mark.parametrize("num_steps", [0, 1, 4, 11])
@pytest.mark.parametrize("mean", [False, True])
def test_it_goes_on_from_a_checkpoint(num_steps: int, mean: bool) -> None:
    settings = {"max_copies": 3, "every": 3, "mean": mean, "max_points": 5}
    history, twin = filled(num_steps, **settings), History(**settings)
    saved = history.state_dict()
    save({key: value for key, value in saved.items() if isinstance(value, torch.Tensor)})
    json.dumps({k: v for k, v in saved.items() if not isinstance(v, torch.Tensor)})
    twin.load_state_dict(saved)
    for clock in range(num_steps + 1, num_steps + 9):
        for each in (history, twin):
            each.observe(clock, state(clock**2), loss=float(clock))
    assert twin.summary() == history.summary()
    assert twin.clocks == history.clocks
    assert all(torch.equal(*pair) for pair in zip(twin.states, history.states, strict=True))


def test_checkpoints_that_do_not_fit_are_refused() -> None:
    saved = filled(6).state_dict()
    with pytest.raises(CheckpointError, match="do not fit"):
        History(max_copies=2).load_state_dict(saved)
    with pytest.raises(CheckpointError, match="keys"):
        History().load_state_dict({"clocks": []})
    saved["states"][0, 0] = float("nan")
    with pytest.raises(CheckpointError, match="NaN"):
        History().load_state_dict(saved)


@pytest.mark.parametrize(
    "settings",
    [{"max_copies": 0}, {"max_copies": 1, "mean": True}, {"every": 0}, {"max_points": 0}],
)
def test_settings_out_of_range_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError, match="must be >="):
        History(**settings)
