"""Predictors against closed forms, NumPy and SciPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from freewheel.errors import CheckpointError, ConfigError, NonFiniteError
from freewheel.predictors import PerTensor, Predictor, per_tensor, predictors
from freewheel.predictors.base import Damping

#: Every kind of ours with settings under which a straight line is predicted exactly.
EXACT_ON_LINES = [
    ("velocity", {"estimate": "last"}),
    ("velocity", {"estimate": "window", "window": 5}),
    ("velocity", {"estimate": "means", "window": 5}),
    ("velocity", {"estimate": "ewma", "decay": 0.7}),
    ("velocity", {"estimate": "window", "shrink": True}),
    ("velocity", {"estimate": "ewma", "shrink": True}),
    ("acceleration", {"window": 2}),
    ("trend", {}),
    ("regression", {"degree": 1}),
    ("regression", {"degree": 3, "anchored": True}),
    ("kalman", {}),
    ("koopman", {}),
]
#: Every kind that adds a change to the last state, so that a constant is predicted bit for bit.
EXACT_ON_CONSTANTS = [
    *EXACT_ON_LINES,
    ("static", {}),
    ("average", {}),
    ("anderson", {}),
]


def fed(name: str, values: np.ndarray | Tensor, clocks=None, **given_settings) -> Predictor:
    predictor = predictors.create(name, given_settings)
    states = torch.as_tensor(values, dtype=torch.float64)
    for clock, state in zip(clocks or range(len(states)), states, strict=True):
        predictor.observe(clock, state if state.dim() else state[None])
    return predictor


def walk(num_states: int = 12, num_values: int = 5, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num_states, num_values)).cumsum(axis=0)


@pytest.mark.parametrize(
    ("name", "chosen", "clocks"),
    [(name, chosen, list(range(8))) for name, chosen in EXACT_ON_LINES]
    + [
        (name, chosen, [0, 3, 4, 9, 11, 12, 20, 27])
        for name, chosen in EXACT_ON_LINES
        if name != "koopman"  # needs equal distances, see the test of its own
    ],
)
def test_a_line_is_predicted_exactly(name: str, chosen: dict, clocks: list[int]) -> None:
    start, slope = np.array([1.0, -2.0, 0.5]), np.array([0.25, 3.0, -1.0])
    line = [start + slope * clock for clock in clocks]
    predicted = fed(name, np.array(line), clocks, **chosen).predict(13)
    np.testing.assert_allclose(predicted, start + slope * (clocks[-1] + 13), rtol=1e-9)


@pytest.mark.parametrize(("name", "chosen"), EXACT_ON_CONSTANTS)
@given(values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_a_constant_is_predicted_bit_for_bit(name: str, chosen: dict, values: list[float]) -> None:
    state = torch.tensor(values, dtype=torch.float32)
    predictor = predictors.create(name, chosen)
    for clock in range(9):
        predictor.observe(clock, state)
    assert torch.equal(predictor.predict(17), state)


@pytest.mark.parametrize(
    ("gamma", "cap", "horizon"), [(1.0, None, 7), (0.8, None, 5), (0.9, 3, 10), (1.0, 4, 9)]
)
def test_damping_is_the_geometric_sum(gamma: float, cap: int | None, horizon: int) -> None:
    steps = min(horizon, cap) if cap else horizon
    expected = sum(gamma**j for j in range(1, steps + 1))
    assert Damping(gamma, cap)(horizon) == pytest.approx(expected, rel=1e-12)
    for name in ("velocity", "kalman", "trend"):
        # Of a line through 0 and 1 the velocity is 1 and the last state 1.
        chosen = {"estimate": "last"} if name == "velocity" else {}
        if name == "trend" and gamma < 1.0:
            continue  # there gamma also damps the trend while it is smoothed
        predicted = fed(name, np.array([[0.0], [1.0]]), gamma=gamma, cap=cap, **chosen)
        assert float(predicted.predict(horizon)) == pytest.approx(1.0 + expected)


def test_linear_growth_by_hand() -> None:
    predictor = fed("linear_growth", np.array([[2.0, -4.0]]), clocks=[8])
    assert predictor.predict(4).tolist() == [3.0, -6.0]  # 12/8 of the state


@pytest.mark.parametrize("clock", [0, -3])
def test_linear_growth_before_the_first_step_stands_still(clock: int) -> None:
    assert fed("linear_growth", np.array([[2.0]]), clocks=[clock]).predict(4).tolist() == [2.0]


def test_average_is_the_mean_of_the_window() -> None:
    states = walk()
    np.testing.assert_allclose(
        fed("average", states, window=5).predict(3), states[-5:].mean(axis=0), rtol=1e-12
    )


def test_velocities_against_their_formulas() -> None:
    states, clocks = walk(8), [0, 1, 2, 4, 5, 7, 10, 11]
    last = states[-1] + 6 * (states[-1] - states[-2])
    np.testing.assert_allclose(fed("velocity", states, clocks, estimate="last").predict(6), last)
    window = states[-1] + 6 * (states[-1] - states[-4]) / (11 - 5)
    predicted = fed("velocity", states, clocks, estimate="window", window=4).predict(6)
    np.testing.assert_allclose(predicted, window)
    drift = (states[-2:].mean(axis=0) - states[-4:-2].mean(axis=0)) / (10.5 - 6.0)
    predicted = fed("velocity", states, clocks, estimate="means", window=4).predict(6)
    np.testing.assert_allclose(predicted, states[-1] + 6 * drift)


def test_velocity_of_means_over_an_odd_window_uses_every_state() -> None:
    states = walk(3)
    drift = (states[1:].mean(axis=0) - states[0]) / 1.5
    predicted = fed("velocity", states, estimate="means", window=3).predict(2)
    np.testing.assert_allclose(predicted, states[-1] + 2 * drift)


def ewma_weights(count: int, decay: float) -> np.ndarray:
    weights = decay ** np.arange(count - 1, -1, -1.0)
    return weights / weights.sum()


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9])
def test_ewma_is_a_weighted_mean_of_the_differences(decay: float) -> None:
    states = walk()
    velocity = ewma_weights(11, decay) @ np.diff(states, axis=0)
    predicted = fed("velocity", states, estimate="ewma", decay=decay).predict(4)
    np.testing.assert_allclose(predicted, states[-1] + 4 * velocity, rtol=1e-9)


def test_shrinkage_over_a_window_is_signal_over_signal_and_noise() -> None:
    states = walk(6)
    steps = np.diff(states, axis=0)
    mean, noise = steps.mean(axis=0), steps.var(axis=0, ddof=1) / len(steps)
    expected = states[-1] + 4 * mean * mean**2 / (mean**2 + noise)
    predicted = fed("velocity", states, window=6, shrink=True).predict(4)
    np.testing.assert_allclose(predicted, expected, rtol=1e-9)


def test_shrinkage_of_ewma_is_signal_over_signal_and_noise() -> None:
    states, weights = walk(9), ewma_weights(8, 0.8)
    steps = np.diff(states, axis=0)
    mean = weights @ steps
    # Unbiased variance of weighted samples, and the variance of their weighted mean.
    variance = weights @ (steps - mean) ** 2 / (1.0 - (weights**2).sum())
    noise = variance * (weights**2).sum()
    expected = states[-1] + 4 * mean * mean**2 / (mean**2 + noise)
    predicted = fed("velocity", states, estimate="ewma", decay=0.8, shrink=True).predict(4)
    np.testing.assert_allclose(predicted, expected, rtol=1e-9)


def test_shrinkage_holds_still_what_only_jitters() -> None:
    jitter_and_drift = np.array([[(-1.0) ** step, float(step)] for step in range(9)])
    predicted = fed("velocity", jitter_and_drift, window=9, shrink=True).predict(100)
    assert predicted.tolist() == [1.0, 108.0]


def test_acceleration_is_the_published_formula() -> None:
    states, clocks = walk(7), [0, 1, 2, 4, 5, 7, 10]
    late = (states[6] - states[4]) / (10 - 5)
    early = (states[4] - states[2]) / (5 - 2)
    expected = states[6] + 8 * late + 0.5 * 8**2 * (late - early) / (10 - 5)
    predicted = fed("acceleration", states, clocks, window=2).predict(8)
    np.testing.assert_allclose(predicted, expected, rtol=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_trend_is_holts_recursion(gamma: float) -> None:
    states, alpha, beta = walk(), 0.4, 0.3
    level, trend = states[0], states[1] - states[0]
    for state in states[1:]:  # as in the textbook
        ahead = level + gamma * trend
        before, level = level, alpha * state + (1 - alpha) * ahead
        trend = beta * (level - before) + (1 - beta) * gamma * trend
    expected = level + sum(gamma**j for j in range(1, 6)) * trend
    predicted = fed("trend", states, alpha=alpha, beta=beta, gamma=gamma).predict(5)
    np.testing.assert_allclose(predicted, expected, rtol=1e-9)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("horizon", [1, 11])
def test_regression_is_numpys_polynomial_fit(degree: int, horizon: int) -> None:
    states, clocks = walk(7), [100, 101, 104, 105, 109, 111, 112]
    predicted = fed("regression", states, clocks, window=7, degree=degree).predict(horizon)
    fit = np.polynomial.polynomial.polyfit(np.array(clocks) - 106.0, states, degree)
    expected = np.polynomial.polynomial.polyval(112 + horizon - 106.0, fit)
    np.testing.assert_allclose(predicted, expected, rtol=1e-7)
    anchored = fed("regression", states, clocks, window=7, degree=degree, anchored=True)
    moved = expected - np.polynomial.polynomial.polyval(112 - 106.0, fit)
    np.testing.assert_allclose(anchored.predict(horizon), states[-1] + moved, rtol=1e-7, atol=1e-12)


def test_regression_with_fewer_states_than_its_degree_uses_what_they_determine() -> None:
    assert fed("regression", np.array([[1.0], [2.0]]), degree=3).predict(2).item() == (
        pytest.approx(4.0)
    )


def dense_kalman(values, clocks, ratio: float, horizon: int) -> float:
    """A textbook filter of one coordinate, started from two observations."""
    gap = clocks[1] - clocks[0]
    x = np.array([values[1], (values[1] - values[0]) / gap])
    p = np.array([[1, 1 / gap], [1 / gap, 2 / gap**2]])
    h = np.array([[1.0, 0.0]])
    for k in range(2, len(values)):
        gap = clocks[k] - clocks[k - 1]
        f, g = np.array([[1, gap], [0, 1]]), np.array([[gap**2 / 2], [gap]])
        x, p = f @ x, f @ p @ f.T + ratio**2 * g @ g.T
        gain = p @ h.T / (h @ p @ h.T + 1.0)
        x = x + (gain * (values[k] - h @ x)).ravel()
        p = (np.eye(2) - gain @ h) @ p
    return x[0] + horizon * x[1]


def test_kalman_is_the_textbook_filter_on_every_coordinate() -> None:
    states, clocks = walk(10), [0, 1, 2, 5, 6, 7, 9, 12, 13, 14]
    predicted = fed("kalman", states, clocks, ratio=0.3).predict(4)
    expected = [dense_kalman(states[:, i], clocks, 0.3, 4) for i in range(states.shape[1])]
    np.testing.assert_allclose(predicted, expected, rtol=1e-9)


@pytest.mark.parametrize("ratio", [0.05, 0.5])
def test_kalman_settles_at_the_closed_form_gains(ratio: float) -> None:
    predictor = fed("kalman", np.zeros((400, 1)), ratio=ratio)
    predictor.observe(400, torch.ones(1, dtype=torch.float64))  # its gain is read off a unit error
    saved = predictor.state_dict()
    # Kalata's alpha and beta for the tracking index; and SciPy's Riccati solver.
    r = (4 + ratio - np.sqrt(8 * ratio + ratio**2)) / 4
    alpha = 1 - r**2
    beta = 2 * (2 - alpha) - 4 * np.sqrt(1 - alpha)
    assert float(saved["level"]) == pytest.approx(alpha, rel=1e-6)
    assert float(saved["velocity"]) == pytest.approx(beta, rel=1e-6)
    f, g, h = np.array([[1.0, 1], [0, 1]]), np.array([[0.5], [1.0]]), np.array([[1.0], [0]])
    p = scipy.linalg.solve_discrete_are(f.T, h, ratio**2 * g @ g.T, np.eye(1))
    assert float(saved["level"]) == pytest.approx(p[0, 0] / (p[0, 0] + 1), rel=1e-6)


def descent(num_states: int, curvatures=(0.05, 0.3, 0.8), rate: float = 1.0) -> np.ndarray:
    """Gradient descent on a quadratic: an affine iteration with a known matrix."""
    rotation = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))[0]
    hessian = rotation @ np.diag(curvatures) @ rotation.T
    target, states = np.array([1.0, -2.0, 3.0]), [np.zeros(3)]
    for _ in range(num_states - 1):
        states.append(states[-1] - rate * hessian @ (states[-1] - target))
    return np.array(states)


@pytest.mark.parametrize("horizon", [1, 5, 60])
def test_koopman_foresees_gradient_descent_on_a_quadratic(horizon: int) -> None:
    states = descent(8 + horizon)
    predicted = fed("koopman", states[:8], window=8, tolerance=1e-6).predict(horizon)
    np.testing.assert_allclose(predicted, states[7 + horizon], rtol=1e-4)


def test_koopman_is_dynamic_mode_decomposition_by_svd() -> None:
    states = walk(7, num_values=40)
    steps = np.diff(states, axis=0).T
    u, s, vt = np.linalg.svd(steps[:, :-1], full_matrices=False)
    u, s, vt = u[:, :3], s[:3], vt[:3]
    dynamics = u.T @ steps[:, 1:] @ vt.T / s
    ahead, moved = u.T @ steps[:, -1], np.zeros(40)
    for _ in range(4):
        ahead = dynamics @ ahead
        moved += u @ ahead
    predicted = fed("koopman", states, window=7, rank=3, stable=False).predict(4)
    np.testing.assert_allclose(predicted, states[-1] + moved, rtol=1e-7)


def test_koopman_uses_only_the_newest_states_at_one_distance() -> None:
    states = descent(10)
    clocks = [0, 7, 9, 10, 11, 12, 13, 14, 15, 16]
    mixed = fed("koopman", states, clocks, window=10).predict(5)
    alone = fed("koopman", states[2:], clocks[2:], window=10).predict(5)
    assert torch.equal(mixed, alone)


def test_koopman_over_wider_distances_and_between_them() -> None:
    states = descent(30)
    predictor = fed("koopman", states[0:20:2], clocks=list(range(0, 20, 2)), tolerance=1e-6)
    np.testing.assert_allclose(predictor.predict(2), states[20], rtol=1e-5)
    np.testing.assert_allclose(predictor.predict(4), states[22], rtol=1e-5)
    halfway = (predictor.predict(2) + predictor.predict(4)) / 2
    np.testing.assert_allclose(predictor.predict(3), halfway, rtol=1e-12)


def test_koopman_when_stable_never_runs_away() -> None:
    growing = 1.5 ** np.arange(8.0)[:, None]
    stable = fed("koopman", growing, stable=True).predict(50)
    step = growing[-1] - growing[-2]
    np.testing.assert_allclose(
        stable, growing[-1] + 50 * step, rtol=1e-6
    )  # radius 1: goes straight
    runaway = fed("koopman", growing, stable=False).predict(4)
    np.testing.assert_allclose(runaway, growing[-1] * 1.5**4, rtol=1e-6)


@pytest.mark.parametrize("horizon", [1, 50])
def test_anderson_finds_the_fixed_point_of_gradient_descent(horizon: int) -> None:
    predicted = fed("anderson", descent(5), window=5, regularization=1e-14).predict(horizon)
    np.testing.assert_allclose(predicted, [1.0, -2.0, 3.0], rtol=1e-4)


@pytest.mark.parametrize("regularization", [1e-2, 1.0])
def test_anderson_minimises_the_regularised_residual(regularization: float) -> None:
    states = walk(5, num_values=9)
    residuals = np.diff(states, axis=0)
    size = np.linalg.norm(residuals @ residuals.T, 2)

    def objective(c: np.ndarray) -> float:
        return float(np.sum((c @ residuals) ** 2) / size + regularization * np.sum(c**2))

    found = scipy.optimize.minimize(
        objective,
        np.full(4, 0.25),
        constraints={"type": "eq", "fun": lambda c: c.sum() - 1.0},
        options={"ftol": 1e-15, "maxiter": 500},
    )
    predicted = fed("anderson", states, window=5, regularization=regularization).predict(1)
    np.testing.assert_allclose(predicted, found.x @ states[1:], rtol=1e-4, atol=1e-4)


def test_a_gram_matrix_over_several_chunks_is_numpys(monkeypatch: pytest.MonkeyPatch) -> None:
    from freewheel.predictors import base, window

    monkeypatch.setattr(base, "CHUNK", 3)
    states = walk(4, num_values=8)
    steps = np.diff(states, axis=0)
    found = window.gram_of_differences([torch.as_tensor(row) for row in states])
    np.testing.assert_allclose(found, steps @ steps.T, rtol=1e-12)


def test_a_prediction_that_overflows_is_counted() -> None:
    largest = torch.finfo(torch.float32).max
    predictor = predictors.create("velocity", {"estimate": "last"})
    predictor.observe(0, torch.tensor([0.0]))
    predictor.observe(1, torch.tensor([largest / 2]))
    assert predictor.predict(10).tolist() == [largest / 2]
    assert predictor.num_refused == 1
    twin = predictors.create("velocity", {"estimate": "last"})
    twin.load_state_dict(predictor.state_dict())
    assert twin.num_refused == 1


@pytest.mark.parametrize(
    ("name", "chosen", "message"),
    [
        ("velocity", {"estimate": "lst"}, "estimate must be one of"),
        ("velocity", {"window": 1}, "window must be >= 2"),
        ("velocity", {"window": 2, "shrink": True}, "window must be >= 3"),
        ("velocity", {"estimate": "last", "shrink": True}, "shrink needs several"),
        ("velocity", {"estimate": "ewma", "decay": 1.0}, "decay"),
        ("velocity", {"gamma": 0.0}, "gamma"),
        ("velocity", {"gamma": float("nan")}, "gamma"),
        ("velocity", {"cap": 0}, "cap"),
        ("acceleration", {"window": 0}, "window"),
        ("trend", {"alpha": 0.0}, "alpha"),
        ("trend", {"beta": 1.5}, "beta"),
        ("regression", {"window": 3, "degree": 3}, "degree"),
        ("regression", {"window": 1, "degree": 0}, "window must be >= 2"),
        ("kalman", {"ratio": 0.0}, "ratio"),
        ("koopman", {"rank": 0}, "rank"),
        ("koopman", {"tolerance": 0.0}, "tolerance"),
        ("koopman", {"window": 2}, "window must be >= 3"),
        ("anderson", {"regularization": 0.0}, "regularization"),
        ("average", {"window": 0}, "window"),
        ("velocty", {}, "did you mean 'velocity'"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, chosen: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        predictors.create(name, chosen)


def test_a_longer_window_than_the_checkpoint_can_hold_is_refused() -> None:
    saved = fed("average", walk(), window=6).state_dict()
    with pytest.raises(CheckpointError, match="settings that it was saved with"):
        predictors.create("average", {"window": 3}).load_state_dict(saved)


def test_per_tensor_cuts_a_vector_into_views() -> None:
    state = torch.arange(6.0)
    parts = per_tensor(state, [1, 0, 5])
    assert [part.tolist() for part in parts] == [[0.0], [], [1.0, 2.0, 3.0, 4.0, 5.0]]
    parts[2][0] = 9.0
    assert state[1] == 9.0
    with pytest.raises(ValueError, match="sum to 5"):
        per_tensor(state, [5])
    with pytest.raises(ValueError, match="sizes"):
        per_tensor(state, [7, -1])


def mixed() -> PerTensor:
    return PerTensor([2, 3], [predictors.create("average"), predictors.create("velocity")])


def test_per_tensor_predicts_each_tensor_by_its_own_predictor() -> None:
    states, both = walk(), mixed()
    for clock, state in enumerate(states):
        both.observe(clock, torch.as_tensor(state))
    expected = torch.cat(
        [
            fed("average", states[:, :2]).predict(4),
            fed("velocity", states[:, 2:]).predict(4),
        ]
    )
    assert torch.equal(both.predict(4), expected)
    assert both.copies == 8.0
    twin = mixed()
    twin.load_state_dict(both.state_dict())
    assert torch.equal(twin.predict(4), expected)


def test_per_tensor_refuses_a_state_as_a_whole() -> None:
    both = mixed()
    for clock, state in enumerate(walk()[:4]):
        both.observe(clock, torch.as_tensor(state))
    before = both.predict(3)
    with pytest.raises(NonFiniteError):
        both.observe(9, torch.tensor([1.0, 2.0, 3.0, float("nan"), 5.0], dtype=torch.float64))
    assert torch.equal(both.predict(3), before)


def test_per_tensor_needs_one_predictor_for_each() -> None:
    with pytest.raises(ValueError, match="one predictor per tensor"):
        PerTensor([1, 2], [predictors.create("static")])


def test_every_difference_of_the_window_is_used_again_as_memory() -> None:
    """A full window allocates nothing for a new state: it writes over the oldest."""
    predictor = fed("average", walk(4), window=4)
    held = {state.data_ptr() for state in predictor._states}
    for clock, state in zip(itertools.count(4), walk(6, seed=1), strict=False):
        predictor.observe(clock, torch.as_tensor(state))
    assert {state.data_ptr() for state in predictor._states} == held


@pytest.mark.parametrize(("name", "chosen"), EXACT_ON_CONSTANTS)
def test_large_states_are_worked_on_in_chunks(
    name: str, chosen: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    from freewheel.predictors import base

    whole = fed(name, walk(9, num_values=10), **chosen).predict(6)
    monkeypatch.setattr(base, "CHUNK", 3)
    chunked = fed(name, walk(9, num_values=10), **chosen).predict(6)
    np.testing.assert_allclose(chunked, whole, rtol=1e-6)
