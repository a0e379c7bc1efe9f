"""Trust monitors: loss guard, deviation, stability, backtest."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from freewheel.errors import ConfigError
from freewheel.monitors import monitors
from freewheel.monitors.backtest import Backtest
from freewheel.monitors.deviation import Deviation, deviation_evidence
from freewheel.monitors.loss_guard import LossGuard
from freewheel.monitors.stability import Stability
from freewheel.predictors import History

# --- loss guard -------------------------------------------------------------------------------


def warm(losses: list[float], **settings) -> LossGuard:
    guard = LossGuard(min_losses=len(losses), **settings)
    for clock, loss in enumerate(losses, 1):
        guard.observe(clock, {"loss": loss})
    return guard


def jump(guard: LossGuard, clock: int, loss: float) -> str:
    return guard.observe(clock, {"loss": loss, "jumped": 1}).verdict


def test_guard_has_no_horizon_until_it_can_judge() -> None:
    guard = LossGuard(min_losses=3, horizon=8)
    horizons = [guard.horizon]
    for clock in range(3):
        guard.observe(clock, {"loss": 1.0})
        horizons.append(guard.horizon)
    assert horizons == [0, 0, 0, 8]


def test_guard_doubts_a_jump_that_it_cannot_judge() -> None:
    assert jump(LossGuard(), 1, 0.1) == "doubt"


@pytest.mark.parametrize(
    ("settings", "bound"),
    [
        ({"factor": 1.5, "sigmas": None}, 4.5),  # of a mean of 3
        ({"factor": None, "sigmas": 2.0}, 3.0 + 2.0 * math.sqrt(2.5)),
        ({"factor": 1.5, "sigmas": 2.0}, 4.5),  # both must hold
        ({"factor": 3.0, "sigmas": 0.0}, 3.0),
    ],
)
def test_guard_bound_is_that_of_the_running_mean(settings: dict, bound: float) -> None:
    losses = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert warm(losses, **settings).bound == pytest.approx(bound)
    assert jump(warm(losses, **settings), 20, bound - 1e-9) == "trust"
    assert jump(warm(losses, **settings), 20, bound + 1e-9) == "doubt"


def test_guard_halves_after_a_doubt_and_doubles_after_patience() -> None:
    guard = warm([1.0, 1.0], horizon=8, max_horizon=20, patience=2, factor=1.1, sigmas=None)
    seen = []
    for clock, loss in enumerate([9.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], 10):
        jump(guard, clock, loss)
        seen.append(guard.horizon)
    assert seen == [4, 2, 2, 4, 4, 8, 8, 16, 16, 20]
    assert (guard.num_rolled_back, guard.num_stood) == (2, 8)


def test_guard_forgets_the_loss_of_a_jump_that_is_rolled_back() -> None:
    guard = warm([1.0, 1.0], factor=2.0, sigmas=None)
    jump(guard, 10, 100.0)
    assert guard.bound == 2.0
    jump(guard, 11, 1.9)
    assert guard.bound == pytest.approx(2.0 * (1.0 + 1.0 + 1.9) / 3)


def test_guard_lets_the_clock_go_back_after_a_doubt_only() -> None:
    guard = warm([1.0, 1.0], factor=1.1, sigmas=None)
    jump(guard, 50, 9.0)
    assert guard.observe(3, {"loss": 1.0}).verdict == "trust"
    with pytest.raises(ValueError, match="clock"):
        guard.observe(3, {"loss": 1.0})


def test_guard_rests_where_even_the_shortest_jump_fails() -> None:
    guard = warm([1.0, 1.0], horizon=2, rest=3, factor=1.1, sigmas=None)
    jump(guard, 10, 9.0)
    assert guard.horizon == 1
    jump(guard, 11, 9.0)
    horizons = [guard.horizon]
    for clock in range(12, 15):
        guard.observe(clock, {"loss": 1.0})
        horizons.append(guard.horizon)
    assert horizons == [0, 0, 0, 1]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_guard_doubts_a_loss_that_is_not_finite(loss: float) -> None:
    guard = warm([1.0, 1.0], horizon=8)
    assert jump(guard, 10, loss) == "doubt"
    assert (guard.horizon, guard.num_rolled_back, guard.num_non_finite) == (4, 1, 1)
    assert guard.observe(11, {"loss": loss}).verdict == "doubt"  # without a jump: no halving
    assert (guard.horizon, guard.num_rolled_back, guard.num_non_finite) == (4, 1, 2)


@pytest.mark.parametrize("losses", [[0.0, 0.0], [-2.0, -2.0], [1.0, 1.0]])
def test_guard_of_constant_zero_or_negative_losses_trusts_their_repetition(losses: list) -> None:
    assert jump(warm(losses, sigmas=2.0), 9, losses[0]) == "trust"
    assert jump(warm(losses, sigmas=2.0), 9, losses[0] + 1e-6) == "doubt"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factor": None, "sigmas": None}, "without a bound"),
        ({"factor": 0.9}, "factor"),
        ({"sigmas": -1.0}, "sigmas"),
        ({"min_losses": 1}, "min_losses"),
        ({"min_losses": 50, "window": 40}, "min_losses"),
        ({"horizon": 0}, "horizon"),
        ({"horizon": 500}, "horizon"),
        ({"patience": 0}, "patience"),
        ({"rest": -1}, "rest"),
    ],
)
def test_guard_settings_out_of_range(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        monitors.create("loss_guard", settings)


# --- deviation --------------------------------------------------------------------------------


def test_deviation_from_tensors_by_hand() -> None:
    evidence = deviation_evidence(
        torch.tensor([3.0, 1.0]), torch.tensor([3.0, 4.0]), torch.tensor([0.0, 4.0])
    )
    assert evidence == {"error_norm": 3.0, "move_norm": 3.0, "state_norm": 5.0}
    assert Deviation(theta=1.0).observe(1, evidence).verdict == "trust"  # as good as static
    assert Deviation(theta=0.99).observe(1, evidence).verdict == "doubt"
    # theta / sqrt(k) * ||x||: 3 <= 1.2 / 2 * 5 just holds
    verdict = Deviation(theta=1.2, relative_to="state", sites=4).observe(1, evidence)
    assert (verdict.verdict, verdict.statistic, verdict.threshold) == ("trust", 0.6, 0.6)


@pytest.mark.parametrize(
    ("error", "move", "word"),
    [
        (0.0, 0.0, "trust"),
        (1e-9, 0.0, "doubt"),
        (float("nan"), 1.0, "doubt"),
        (None, 1.0, "unsure"),
    ],
)
def test_deviation_at_the_edges(error: float | None, move: float, word: str) -> None:
    assert Deviation().observe(1, {"error_norm": error, "move_norm": move}).verdict == word


def test_deviation_of_a_stage_without_parameters_is_trusted() -> None:
    nothing = torch.zeros(0)
    evidence = deviation_evidence(nothing, nothing, nothing)
    assert Deviation().observe(1, evidence).verdict == "trust"


@pytest.mark.parametrize(
    "settings", [{"theta": 0.0}, {"relative_to": "loss"}, {"sites": 0}, {"sites": 2}]
)
def test_deviation_settings_out_of_range(settings: dict) -> None:
    with pytest.raises(ConfigError):
        monitors.create("deviation", settings)


# --- stability --------------------------------------------------------------------------------


def test_effective_perturbation_is_the_published_recursion() -> None:
    states = np.random.default_rng(1).normal(size=(12, 6)).cumsum(axis=0)
    monitor = Stability(decay=0.7, min_steps=1)
    for clock, state in enumerate(states):
        monitor.observe(clock, {"state": torch.as_tensor(state)})
    drift = travel = np.zeros(6)
    for change in np.diff(states, axis=0):
        drift = 0.7 * drift + 0.3 * change
        travel = 0.7 * travel + 0.3 * np.abs(change)
    np.testing.assert_allclose(monitor.effective_perturbation(), np.abs(drift) / travel, rtol=1e-9)


def jittering(num_jitter: int, num_drift: int, num_still: int, clock: int) -> torch.Tensor:
    parts = [[(-1.0) ** clock] * num_jitter, [float(clock)] * num_drift, [1.0] * num_still]
    return torch.tensor([value for part in parts for value in part])


@pytest.mark.parametrize(("num_drift", "word"), [(1, "trust"), (3, "doubt")])
def test_stability_counts_jitter_and_stillness_as_stable(num_drift: int, word: str) -> None:
    monitor = Stability(bound=0.1, share=0.8)
    for clock in range(200):
        verdict = monitor.observe(clock, {"state": jittering(3, num_drift, 2, clock)})
    assert verdict.verdict == word
    assert verdict.statistic == pytest.approx(5 / (5 + num_drift))


def test_stability_tightens_its_bound() -> None:
    monitor = Stability(bound=0.4, decay=0.5, min_steps=6, tighten=True)
    words, bounds = [], []
    for clock in range(8):
        words.append(monitor.observe(clock, {"state": jittering(4, 0, 0, clock)}).verdict)
        bounds.append(monitor.bound)
    # |E| / E_a of alternating signs at decay 1/2 approaches 1/3: below 0.4, never below 0.2
    assert words[5:] == ["unsure", "trust", "doubt"]
    assert bounds[5:] == [0.4, 0.2, 0.2]


def test_stability_of_no_parameters_is_unsure_and_a_change_of_shape_is_refused() -> None:
    monitor = Stability(min_steps=1)
    for clock in range(3):
        assert monitor.observe(clock, {"state": torch.zeros(0)}).verdict == "unsure"
    with pytest.raises(ValueError, match="reset"):
        monitor.observe(3, {"state": torch.zeros(1)})


def test_stability_leaves_out_a_state_that_is_not_finite() -> None:
    monitor, twin = Stability(min_steps=1), Stability(min_steps=1)
    for clock in range(4):
        monitor.observe(2 * clock, {"state": jittering(2, 2, 0, clock)})
        twin.observe(2 * clock, {"state": jittering(2, 2, 0, clock)})
        broken = monitor.observe(2 * clock + 1, {"state": torch.full((4,), float("nan"))})
        assert (broken.verdict, broken.statistic) == ("doubt", None)
    assert torch.equal(monitor.effective_perturbation(), twin.effective_perturbation())


# --- backtest ---------------------------------------------------------------------------------


def remembered(states: list[list[float]], clocks: list[int] | None = None) -> History:
    history = History(max_copies=len(states))
    for clock, state in zip(clocks or range(len(states)), states, strict=True):
        history.observe(clock, torch.tensor(state, dtype=torch.float64))
    return history


def test_backtest_chooses_for_each_tensor_by_its_error() -> None:
    """A line is for velocity, a parabola for a fit of degree 2, jitter for averaging or nothing."""
    states = [[float(t), float(t * t), (-1.0) ** t] for t in range(8)]
    square = {"name": "regression", "degree": 2, "window": 3}
    backtest = Backtest([{"name": "velocity", "estimate": "last"}, square, "average"])
    verdict = backtest.observe(7, {"history": remembered(states), "sizes": [1, 1, 1]})
    assert verdict.verdict == "trust"
    assert backtest.choice[:2] == ("velocity", "regression")
    assert backtest.horizon == 5  # from the third of eight snapshots, two pairs 5 steps apart


def test_backtest_statistic_is_the_error_relative_to_standing_still() -> None:
    """Velocity doubles each step of a walk that halves: by hand, at horizon 1."""
    points = [0.0, 8.0, 12.0, 14.0, 15.0]
    backtest = Backtest([{"name": "velocity", "estimate": "last"}], horizons=[1], margin=0.0)
    verdict = backtest.observe(9, {"history": remembered([[p] for p in points])})
    predicted = [8 + 8, 12 + 4, 14 + 2]
    errors = [(a - b) ** 2 for a, b in zip(predicted, [12, 14, 15], strict=True)]
    still = [(a - b) ** 2 for a, b in zip([8, 12, 14], [12, 14, 15], strict=True)]
    assert sum(errors) == sum(still)  # exactly as good as static, so static it is
    assert (verdict.statistic, backtest.choice) == (1.0, ("static",))


def test_backtest_prefers_the_longest_horizon_that_holds() -> None:
    """Twelve steps up, twelve down, and so on, under the last velocity.

    Between two turns, at horizon 2 the squared errors sum to 2^2 + 4^2 = 20, those of standing
    still to 11 * 2^2 = 44; at horizon 6 to 364 and 292: 2 holds, 6 does not.
    """
    zigzag = [[float(min(t % 24, 24 - t % 24))] for t in range(100)]
    backtest = Backtest([{"name": "velocity", "estimate": "last"}], horizons=[1, 2, 6, 12])
    backtest.observe(40, {"history": remembered(zigzag)})
    assert backtest.horizon == 2


def test_backtest_falls_back_to_static_on_noise() -> None:
    noise = np.random.default_rng(2).normal(size=(30, 4)).cumsum(axis=0)
    history = remembered(noise.tolist())
    backtest = Backtest([{"name": "velocity", "estimate": "last"}, "koopman"])
    verdict = backtest.observe(1, {"history": history, "sizes": [2, 2]})
    assert (verdict.verdict, backtest.horizon) == ("doubt", 0)
    assert backtest.choice == ("static", "static")
    assert verdict.statistic is not None
    assert verdict.statistic > 0.9
    built = backtest.build([2, 2])
    history.feed(built)
    assert torch.equal(built.predict(9), history.states[-1])


def test_backtest_builds_what_it_chose() -> None:
    history = remembered([[float(t), 1.0] for t in range(8)])
    backtest = Backtest(["velocity"])
    backtest.observe(8, {"history": history, "sizes": [1, 1]})
    built = backtest.build([1, 1])
    history.feed(built)
    assert built.predict(10).tolist() == [17.0, 1.0]


def test_backtest_tells_two_settings_of_one_predictor_apart() -> None:
    backtest = Backtest(["velocity", {"name": "velocity", "estimate": "last"}, "static"])
    assert list(backtest.candidates) == ["static", "velocity", "velocity#2"]


@pytest.mark.parametrize(
    "history",
    [
        History(),
        remembered([[1.0]]),
        remembered([[1.0], [2.0]]),
        remembered([[1.0]] * 6),  # nothing moves: nothing to foresee
        remembered([[1.0], [2.0], [4.0], [8.0]], [0, 1, 10, 100]),  # no two pairs alike
        remembered([[], [], [], [], []]),
    ],
    ids=["empty", "one", "two", "constant", "unequal", "no parameters"],
)
def test_backtest_without_enough_to_go_by_is_unsure_and_static(history: History) -> None:
    backtest = Backtest()
    verdict = backtest.observe(1, {"history": history})
    assert (verdict.verdict, backtest.horizon) == ("unsure", 0)
    assert set(backtest.choice) == {"static"}


def test_backtest_refuses_sizes_that_do_not_fit() -> None:
    history = remembered([[float(t), 1.0] for t in range(8)])
    with pytest.raises(ValueError, match="sizes"):
        Backtest().observe(1, {"history": history, "sizes": [1, 2]})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"candidates": ["velocty"]}, "did you mean 'velocity'"),
        ({"candidates": [{"name": "velocity", "windw": 3}]}, "windw"),
        ({"candidates": [{"window": 3}]}, "needs a name"),
        ({"candidates": "velocity"}, "list"),
        ({"horizons": [0]}, "horizons"),
        ({"horizons": []}, "horizons"),
        ({"margin": 1.0}, "margin"),
        ({"min_pairs": 0}, "min_pairs"),
    ],
)
def test_backtest_settings_out_of_range(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        monitors.create("backtest", settings)
