"""Predicting both ends, and the variance of models: by hand, and against closed forms."""

from __future__ import annotations

import json
import math
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from freewheel.errors import ConfigError
from freewheel.monitors.dual_prediction import DualPrediction, ServerEnd, WorkerEnd, read_spec
from freewheel.monitors.model_variance import (
    AmsSketch,
    Share,
    VarianceReporter,
    model_variance,
    read_report,
)
from freewheel.protocols import Machine, protocols
from freewheel.protocols.arrivals import from_row, to_row
from freewheel.protocols.base import Action, StepDone
from freewheel.protocols.replicas import (
    Ended,
    Fold,
    Grant,
    Granted,
    Joined,
    Left,
    Push,
    Pushed,
    Reported,
    SendPull,
    SendPush,
    SendReport,
    Start,
)


def central(name: str, num_workers: int, **settings: Any) -> Machine:
    machine = protocols.create(name, settings).central()
    assert machine is not None
    for rank in range(num_workers):
        machine.on(Joined(rank))
    return machine


def reports(machine: Machine, rank: int, clock: int, square: float, **more: float) -> list[Action]:
    evidence = {"sq_norm": square, **more}
    return list(machine.on(Reported(rank, clock, 4, evidence)))


# ---------------------------------------------------------------- the variance of models


def true_variance(changes: Tensor, weights: np.ndarray[Any, Any]) -> float:
    mean = np.average(changes.numpy(), axis=0, weights=weights)
    squares = ((changes.numpy() - mean) ** 2).sum(1)
    return float(np.average(squares, weights=weights))


def test_the_linear_estimate_is_never_below_the_variance_and_tight_along_the_last_move() -> None:
    generator = torch.Generator().manual_seed(0)
    for trial in range(20):
        start, samples = torch.randn(50, generator=generator), np.array([3.0, 1.0, 4.0])
        moved = start + torch.randn(50, generator=generator)
        # two parts, as with two servers, must give what one does
        reporters = [VarianceReporter() for _ in samples]
        for reporter in reporters:
            reporter.synchronised([start[:20], start[20:]])
            reporter.synchronised([moved[:20], moved[20:]])
        direction = (moved - start) / (moved - start).norm()
        noise = torch.randn(3, 50, generator=generator) * (0.0 if trial == 0 else 1.0)
        changes = torch.tensor([1.0, 2.0, 3.0])[:, None] * direction + noise
        shares = []
        for reporter, change, weight in zip(reporters, changes, samples, strict=True):
            own = moved + change
            evidence, sketch = read_report(reporter.report([own[:20], own[20:]]))
            assert sketch == ()
            shares.append(Share(weight, evidence))
        estimate, truth = model_variance(shares), true_variance(changes, samples)
        assert estimate >= truth - 1e-4
        if trial == 0:  # all drift along the last move: nothing is lost
            assert estimate == pytest.approx(truth, abs=1e-4)


def test_the_sketched_estimate_is_within_its_error_and_its_mean_is_that_of_the_mean() -> None:
    generator = torch.Generator().manual_seed(1)
    rows, columns, errors = 5, 250, []
    for _ in range(20):
        changes = torch.randn(4, 2000, generator=generator) + 1.0
        shares = []
        for change in changes:
            reporter = VarianceReporter(rows, columns)
            reporter.synchronised([torch.zeros(2000)])
            evidence, sketch = read_report(reporter.report([change]))
            assert len(sketch) == rows * columns
            shares.append(Share(1.0, evidence, sketch))
        truth, square = true_variance(changes, np.ones(4)), float(changes.mean(0).norm() ** 2)
        errors.append((model_variance(shares, rows) - truth) / square)
    # sqrt(2 / 250) = 9% a row; the median of five is closer; 20 draws stay within 3 of these
    assert max(map(abs, errors)) < 3 * math.sqrt(2 / columns)
    assert max(map(abs, errors)) > 0.0
    sketch = AmsSketch(2000, rows, columns)
    mean = torch.stack([sketch(change) for change in changes]).mean(0)
    assert torch.allclose(mean, sketch(changes.mean(0)), atol=1e-4)


def test_a_sketch_estimates_the_norm_without_bias() -> None:
    x = torch.randn(300, generator=torch.Generator().manual_seed(2))
    found = [float((AmsSketch(300, 1, 20, seed)(x) ** 2).sum()) for seed in range(400)]
    # each has a standard deviation of about sqrt(2 / 20) = 32%: the mean of 400 one of 1.6%
    assert np.mean(found) == pytest.approx(float(x @ x), rel=0.06)


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([Share(1.0, {"sq_norm": 4.0}), Share(3.0, {"sq_norm": 8.0})], 7.0),
        ([Share(1.0, {"sq_norm": 4.0, "along": 2.0})], 0.0),
        # one that does not know the last move makes it unknown for all
        ([Share(1.0, {"sq_norm": 4.0, "along": 2.0}), Share(1.0, {"sq_norm": 4.0})], 4.0),
        ([Share(1.0, {}), Share(1.0, {"sq_norm": 4.0})], math.inf),
        ([Share(1.0, {"sq_norm": math.nan})], math.inf),
        ([Share(0.0, {"sq_norm": 4.0})], 0.0),
    ],
)
def test_what_is_not_known_makes_the_estimate_larger(shares: list[Share], expected: float) -> None:
    assert model_variance(shares) == expected


def test_a_newcomer_reports_no_move() -> None:
    reporter = VarianceReporter()
    reporter.synchronised([torch.ones(3)])
    evidence, _ = read_report(reporter.report([torch.zeros(3)]))
    assert evidence == {"sq_norm": 3.0}


# ---------------------------------------------------------------- fda


def test_fda_goes_on_while_the_variance_is_small_and_averages_when_it_is_not() -> None:
    machine = central("fda", 2, theta=1.0, every=3)
    assert reports(machine, 0, 3, 0.8) == []
    assert reports(machine, 1, 3, 1.2) == [Grant(0, 5), Grant(1, 5)]
    assert reports(machine, 1, 6, 2.0) == []
    assert reports(machine, 0, 6, 1.0) == [Grant(0, 5), Grant(1, 5)]  # nobody may go on: push
    assert list(machine.on(Pushed(Push(0, 6, 0, 4, "delta"), {}))) == []
    actions = list(machine.on(Pushed(Push(1, 6, 0, 12, "delta"), {})))
    assert isinstance(actions[0], Fold)
    assert actions[0].weights == (0.25, 0.75)
    assert actions[1:] == [Grant(0, 8), Grant(1, 8)]


def test_fda_takes_the_mean_change_into_account() -> None:
    """All drift along the last move: far, but together."""
    machine = central("fda", 2, theta=1.0)
    reports(machine, 0, 1, 100.0, along=10.0)
    assert reports(machine, 1, 1, 100.0, along=10.0) == [Grant(0, 1), Grant(1, 1)]


def test_fda_waits_neither_for_the_dead_nor_for_those_that_have_ended() -> None:
    machine = central("fda", 3, theta=1.0)
    reports(machine, 0, 1, 0.5)
    machine.on(Pushed(Push(1, 1, 0, 4, "delta"), {}))  # its data has ended
    assert list(machine.on(Left(2))) == [Grant(0, 1)]
    machine.on(Left(1))
    assert reports(machine, 0, 2, 5.0) == [Grant(0, 1)]
    fold, grant = machine.on(Pushed(Push(0, 2, 0, 4, "delta"), {}))
    assert isinstance(fold, Fold)
    assert [(push.worker, push.clock) for push in fold.pushes] == [(0, 2), (1, 1)]
    assert grant == Grant(0, 2)


def test_fda_calls_a_newcomer_to_an_average_that_is_under_way() -> None:
    machine = central("fda", 2, theta=1.0)
    reports(machine, 0, 1, 9.0)
    reports(machine, 1, 1, 9.0)
    assert list(machine.on(Joined(2))) == [Grant(2, 0)]
    machine.on(Pushed(Push(0, 1, 0, 4, "delta"), {}))
    machine.on(Left(0))  # its push is in; the average is still under way
    assert list(machine.on(Pushed(Push(1, 1, 0, 4, "delta"), {}))) == []
    assert reports(machine, 2, 1, 0.0) == [Grant(2, 0)]
    actions = list(machine.on(Pushed(Push(2, 1, 0, 4, "delta"), {})))
    assert [type(action).__name__ for action in actions] == ["Fold", "Grant", "Grant"]


def test_fda_averages_where_it_does_not_know() -> None:
    machine = central("fda", 1, theta=1e9)
    assert list(machine.on(Reported(0, 1, 4))) == [Grant(0, 0)]


def test_a_worker_of_fda_reports_and_pushes_when_called() -> None:
    local = protocols.create("fda", {"theta": 1.0, "every": 2}).local(0)
    assert local.on(Granted(1, 0)) == (Start(0),)
    assert local.on(StepDone(1, {}, 0.1)) == (Start(1),)
    assert local.on(StepDone(2, {}, 0.1)) == (SendReport(),)
    assert local.on(Granted(3, 0)) == (Start(2),)
    assert local.on(StepDone(3, {}, 0.1)) == (Start(3),)
    assert local.on(StepDone(4, {}, 0.1)) == (SendReport(),)
    assert local.on(Granted(3, 0)) == (SendPush("delta"), SendPull(1.0))
    assert local.on(Granted(5, 1)) == (Start(4),)
    assert local.on(StepDone(5, {}, 0.1)) == (Start(5),)
    assert local.on(Ended(5)) == (SendPush("delta"),)


def test_theta_0_reports_nothing() -> None:
    protocol = protocols.create("fda", {"theta": 0.0, "every": 2})
    assert protocol.watch is None
    local = protocol.local(0)
    local.on(Granted(1, 0))
    local.on(StepDone(1, {}, 0.1))
    assert local.on(StepDone(2, {}, 0.1)) == (SendPush("delta"), SendPull(1.0))


# ---------------------------------------------------------------- dead reckoning


def near(error: float, **more: float) -> dict[str, float]:
    return {"error_norm": error, "move_norm": 1.0, "state_norm": 10.0, **more}


def test_a_worker_speaks_when_it_left_the_prediction_or_has_been_silent_too_long() -> None:
    local = protocols.create("dead_reckoning", {"tolerance": 0.1, "every": 3}).local(0)
    assert local.on(Granted(2, 0)) == (Start(0),)
    assert local.on(StepDone(1, near(0.9), 0.1)) == (Start(1),)
    assert local.on(StepDone(2, near(1.1), 0.1)) == (SendPush("delta"), SendPull(1.0))
    assert local.on(Granted(4, 1)) == (Start(2),)
    assert local.on(StepDone(3, near(0.0), 0.1)) == (Start(3),)
    assert local.on(StepDone(4, near(0.0), 0.1)) == (Start(4),)
    assert local.on(StepDone(5, near(0.0), 0.1)) == (SendPull(1.0),)
    assert local.on(Granted(7, 1)) == (Start(5),)
    assert local.on(Ended(5)) == (SendPush("delta"),)


def test_with_a_moving_prediction_asking_folds_what_is_predicted() -> None:
    settings = {"tolerance": 0.1, "every": 1, "predictor": "velocity"}
    local = protocols.create("dead_reckoning", settings).local(0)
    local.on(Granted(0, 0))
    assert local.on(StepDone(1, near(0.0), 0.1)) == (SendPush("predicted"), SendPull(1.0))
    local.on(Granted(1, 1))
    assert local.on(Ended(1)) == ()  # what is left is within the tolerance


def test_a_refused_step_and_missing_evidence_are_told_at_once() -> None:
    local = protocols.create("dead_reckoning", {"tolerance": 0.1, "every": 9}).local(0)
    local.on(Granted(8, 0))
    assert local.on(StepDone(1, near(0.0, non_finite=2.0), 0.1))[0] == SendPush("delta")
    local.on(Granted(9, 0))
    assert local.on(StepDone(2, {}, 0.1))[0] == SendPush("delta")


def test_the_last_worker_does_not_count_more_than_the_first() -> None:
    machine = central("dead_reckoning", 4)
    for rank in range(4):
        fold, grant = machine.on(Pushed(Push(rank, 1, rank, 4, "delta"), {}))
        assert isinstance(fold, Fold)
        assert fold.weights == (0.25,)
        assert grant == Grant(rank, 8)
        machine.on(Left(rank))


def test_both_ends_hold_the_same_numbers_whatever_crosses() -> None:
    """Random pushes and answers with losses on the way; the two ends only see what arrives."""
    for seed in range(12):
        chance, generator = Random(seed), torch.Generator().manual_seed(seed)
        spec: Any = chance.choice(
            ["static", "velocity", {"name": "velocity", "estimate": "ewma"}, "acceleration"]
        )
        start = torch.randn(30, generator=generator)
        worker, server = WorkerEnd(spec, start), ServerEnd(spec, 0.05, start)
        own, state, clock, told_count = start.clone(), start.clone(), 0, 0
        for _ in range(60):
            for _ in range(chance.randint(1, 3)):
                clock += 1
                own = own + 0.02 * torch.randn(30, generator=generator)
                error, move, size = worker.stepped(own, clock)
                assert min(error, move, size) >= 0.0
            change, weight, sent = worker.ask(), None, None
            if chance.random() < 0.6:
                weight = chance.choice((1.0, 0.25))
                if chance.random() < 0.7:  # rounded on the way, the same at both ends
                    sent = worker.sent = (change * 64).round() / 64
                folded = server.fold(clock, sent, weight)
                if folded is not None:
                    state = state + weight * folded
            state = state + 0.01 * torch.randn(30, generator=generator)  # the others
            assert server.take_weight() == weight
            assert server.take_weight() is None
            told = None
            if not server.holds(clock, state):
                told, told_count = state, told_count + 1
                server.both.told(clock, told)
            new = worker.answered(weight, told)
            if told is not None:
                assert new is not None
                assert torch.allclose(new, told, atol=0.5), "but for what it holds back"
            own = own if new is None else new
            for one, other in zip(both_of(worker), both_of(server), strict=True):
                assert (one is None) == (other is None)
                assert one is None or torch.equal(one, other)
        assert 0 < told_count < 60, "both kinds of answer were seen"


def both_of(end: WorkerEnd | ServerEnd) -> list[Tensor | None]:
    both, clock = end.both, 10**6
    return [both.known(clock), both.expected(clock)]


def test_a_steady_drift_is_predicted_and_costs_no_tensor() -> None:
    """Of a worker that moves by 1 a step; two pushes give the velocity, which then holds."""
    worker = WorkerEnd({"name": "velocity", "estimate": "last"}, torch.zeros(2))
    own = torch.zeros(2)
    for clock in range(1, 9):
        own = own + 1.0
        error, *_ = worker.stepped(own, clock)
        change = worker.ask()
        if clock in (2, 4):
            assert change.tolist() == [2.0, 2.0]
            worker.sent = change
            new = worker.answered(1.0, None)
        elif clock > 4:
            assert error == 0.0
            new = worker.answered(1.0, None)
        else:
            new = worker.answered(None, None)
        own = own if new is None else new
        assert own.tolist() == [float(clock)] * 2, "nothing is counted twice"


def test_what_was_not_folded_is_pushed_again() -> None:
    worker = WorkerEnd("static", torch.zeros(1))
    worker.stepped(torch.tensor([3.0]), 1)
    worker.sent = worker.ask()
    assert worker.answered(None, None) is None
    worker.stepped(torch.tensor([5.0]), 2)
    assert worker.ask().tolist() == [5.0]
    # told another state meanwhile: it keeps what it holds back
    new = worker.answered(None, torch.tensor([10.0]))
    assert new is not None
    assert new.tolist() == [15.0]


def test_an_answer_may_be_a_correction() -> None:
    worker, both = WorkerEnd("static", torch.ones(1)), DualPrediction("static")
    both.told(0, torch.ones(1))
    worker.stepped(torch.ones(1), 1)
    worker.ask()
    new = worker.answered(None, torch.tensor([0.5]), correction=True)
    assert new is not None
    assert new.tolist() == both.corrected(1, torch.tensor([0.5])).tolist() == [1.5]


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("fda", {"theta": -1.0}, "theta must be >= 0, got -1.0; 0 averages at every report"),
        ("fda", {"theta": math.nan}, "theta must be >= 0, got nan"),
        ("fda", {"estimate": "exact"}, "estimate must be 'linear' or 'sketch', got 'exact'"),
        ("fda", {"every": 0}, "every must be >= 1, got 0"),
        ("fda", {"rows": 4}, "rows of the sketch must be odd, got 4"),
        ("dead_reckoning", {"tolerance": -0.1}, "tolerance must be >= 0, got -0.1"),
        ("dead_reckoning", {"pull_tolerance": -1}, "pull_tolerance must be >= 0, got -1"),
        ("dead_reckoning", {"predictor": "velocty"}, "did you mean 'velocity'"),
        ("dead_reckoning", {"predictor": {"window": 2}}, "a predictor needs a name"),
        ("dead_reckoning", {"every": 0}, "every must be >= 1, got 0"),
    ],
)
def test_bad_settings_name_value_rule_and_remedy(
    name: str, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        protocols.create(name, settings)


def test_a_report_survives_json() -> None:
    event = Reported(1, 2, 3, {"sq_norm": 0.5}, (1.0, 2.5))
    assert from_row(json.loads(json.dumps(to_row(event)))) == event


def test_a_predictor_by_name_or_with_settings() -> None:
    assert read_spec("static") == ("static", {})
    assert read_spec({"name": "velocity", "window": 3}) == ("velocity", {"window": 3})
