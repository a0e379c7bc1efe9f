"""What every monitor and switch criterion must do: ``pytest --pyargs freewheel.contract``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from freewheel.errors import CheckpointError, ConfigError
from freewheel.monitors import Monitor, Verdict, criteria, monitors
from freewheel.predictors import History

NUM_STEPS = 80
BOTH = [("monitor", name) for name in monitors.names()] + [
    ("criterion", name) for name in criteria.names()
]
WORDS = {"monitor": {"trust", "doubt", "unsure"}, "criterion": {"switch", "stay", "unsure"}}
#: What a criterion may do about a loss of each kind is stated; that it goes on is the contract.
LOSSES: dict[str, Callable[[int], float]] = {
    "falling": lambda step: 2.0 * 0.97**step,
    "rising": lambda step: 0.1 * 1.05**step,
    "constant": lambda step: 1.5,
    "zero": lambda step: 0.0,
    "to zero": lambda step: max(0.0, 1.0 - step / 40.0),
    "nan": lambda step: float("nan"),
    "nan now and then": lambda step: float("nan") if step % 3 else 1.0,
    "infinite": lambda step: float("inf"),
    "negative": lambda step: -1.0 - step,
}


@pytest.fixture(params=BOTH, ids=lambda both: "-".join(both))
def kind_and_name(request: pytest.FixtureRequest) -> tuple[str, str]:
    kind, name = request.param
    return str(kind), str(name)


def make(kind_and_name: tuple[str, str]) -> Monitor:
    kind, name = kind_and_name
    return (monitors if kind == "monitor" else criteria).create(name)


class Run:
    """Evidence of all kinds for one step after another."""

    def __init__(self, losses: str = "falling") -> None:
        self.losses = LOSSES[losses]
        self.history = History(max_copies=6)

    def step(self, clock: int) -> dict[str, Any]:
        state = torch.tensor([0.01 * clock, (-1.0) ** clock, 1.0])
        self.history.observe(clock, state)
        loss = self.losses(clock)
        return {
            "loss": loss,
            "validation_loss": loss,
            "epoch": clock // 5,
            "progress": clock / NUM_STEPS,
            "grad_norm_sq": 2.0 + 0.01 * clock,
            "mean_grad_norm_sq": 1.0,
            "num_workers": 4,
            "speedup": 1.7,
            "slowness": 1.2,
            "error_norm": 0.1,
            "move_norm": 0.5,
            "state_norm": 1.0,
            "jumped": float(clock % 20 == 0),
            "state": state,
            "history": self.history if clock % 8 == 0 else None,  # now and then, as in a run
            "sizes": [2, 1],
        }


def watched(monitor: Monitor, first: int, last: int, run: Run) -> list[dict[str, Any]]:
    return [monitor.observe(clock, run.step(clock)).log() for clock in range(first, last)]


def flat(state: Any) -> Any:
    """The same state with tensors as lists, so that two can be compared."""
    if isinstance(state, torch.Tensor):
        return state.tolist()
    if isinstance(state, Mapping):
        return {key: flat(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [flat(value) for value in state]
    return state


def test_it_is_a_monitor(kind_and_name: tuple[str, str]) -> None:
    monitor = make(kind_and_name)
    assert isinstance(monitor, Monitor)
    assert monitor.name == kind_and_name[1]
    assert all(isinstance(name, str) for name in monitor.needs)


@pytest.mark.parametrize("losses", LOSSES)
def test_any_loss_gets_a_verdict_that_can_be_logged(
    kind_and_name: tuple[str, str], losses: str
) -> None:
    monitor, run = make(kind_and_name), Run(losses)
    for clock in range(1, NUM_STEPS):
        verdict = monitor.observe(clock, run.step(clock))
        assert isinstance(verdict, Verdict)
        assert verdict.name == kind_and_name[1]
        assert verdict.verdict in WORDS[kind_and_name[0]]
        assert json.loads(json.dumps(verdict.log(), allow_nan=False)) is not None
        assert not (verdict.verdict in ("trust", "switch") and verdict.statistic is None)


def test_a_step_without_evidence_never_fires_by_itself(kind_and_name: tuple[str, str]) -> None:
    monitor = make(kind_and_name)
    for clock in range(NUM_STEPS):
        verdict = monitor.observe(clock, {})
        assert verdict.verdict in ("unsure", "stay")


def test_evidence_that_is_not_finite_never_fires_by_itself(kind_and_name: tuple[str, str]) -> None:
    monitor = make(kind_and_name)
    broken = {name: float("nan") for name in monitor.needs if name not in ("history", "sizes")}
    if "state" in broken:
        broken["state"] = torch.tensor([float("nan")])  # type: ignore[assignment] # not a number
    for clock in range(NUM_STEPS):
        assert monitor.observe(clock, broken).verdict in ("unsure", "stay", "doubt")


def test_it_goes_on_from_a_checkpoint(kind_and_name: tuple[str, str]) -> None:
    for stop in (0, 1, 7, 45):
        monitor, twin, run = make(kind_and_name), make(kind_and_name), Run()
        watched(monitor, 0, stop, run)
        saved = monitor.state_dict()
        before = flat(saved)
        twin.load_state_dict(saved)
        again = Run()
        again.history.load_state_dict(run.history.state_dict())
        onward = watched(monitor, stop, NUM_STEPS, run)
        assert onward == watched(twin, stop, NUM_STEPS, again)
        assert flat(saved) == before


def test_a_state_without_tensors_is_json(kind_and_name: tuple[str, str]) -> None:
    monitor = make(kind_and_name)
    watched(monitor, 0, 30, Run())
    if "state" not in monitor.needs:
        saved = json.loads(json.dumps(monitor.state_dict(), allow_nan=False))
        twin = make(kind_and_name)
        twin.load_state_dict(saved)
        assert twin.state_dict() == monitor.state_dict()


def test_a_foreign_checkpoint_is_refused(kind_and_name: tuple[str, str]) -> None:
    with pytest.raises(CheckpointError):
        make(kind_and_name).load_state_dict({"something": 1})


def test_reset_leaves_nothing(kind_and_name: tuple[str, str]) -> None:
    monitor = make(kind_and_name)
    first = watched(monitor, 0, 50, Run())
    monitor.reset()
    assert watched(monitor, 0, 50, Run()) == first


@pytest.mark.parametrize("clock", [30, 29, -1])
def test_a_clock_that_does_not_grow_is_refused(kind_and_name: tuple[str, str], clock: int) -> None:
    monitor, run = make(kind_and_name), Run()
    watched(monitor, 0, 31, run)
    with pytest.raises(ValueError, match="clock"):
        monitor.observe(clock, {})
    monitor.reset()
    monitor.observe(clock, {})


def test_an_unknown_setting_is_refused(kind_and_name: tuple[str, str]) -> None:
    kind, name = kind_and_name
    with pytest.raises(ConfigError, match="no setting"):
        (monitors if kind == "monitor" else criteria).create(name, {"no_such_setting_at_all": 1})
