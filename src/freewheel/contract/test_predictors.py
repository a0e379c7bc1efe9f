"""What every predictor must do, ours and third parties': ``pytest --pyargs freewheel.contract``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from freewheel.errors import CheckpointError, ConfigError, NonFiniteError
from freewheel.predictors import Predictor, predictors

NUM_VALUES = 37
NUM_STATES = 24
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(params=predictors.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def path(num_states: int = NUM_STATES, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """A smooth drift with noise, like the parameters of a model that trains."""
    generator = torch.Generator().manual_seed(5)
    start = torch.randn(NUM_VALUES, generator=generator)
    drift = 0.01 * torch.randn(NUM_VALUES, generator=generator)
    noise = 0.001 * torch.randn(num_states, NUM_VALUES, generator=generator)
    return [(start + step * drift + noise[step]).to(dtype) for step in range(num_states)]


def fed(name: str, states: list[Tensor], first_clock: int = 3) -> Predictor:
    predictor = predictors.create(name)
    for clock, state in enumerate(states, first_clock):
        predictor.observe(clock, state)
    return predictor


def tensors_in(state: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        if isinstance(value, Tensor):
            found[prefix + key] = value
        elif isinstance(value, Mapping):
            found.update(tensors_in(value, f"{prefix}{key}."))
    return found


def is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(is_plain(item) for item in value)
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_plain(item) for key, item in value.items())
    return value is None or isinstance(value, bool | int | float | str | Tensor)


def test_it_is_a_predictor(name: str) -> None:
    assert isinstance(predictors.create(name), Predictor)


def test_horizon_zero_is_the_last_state_bit_for_bit(name: str, device: str) -> None:
    states = [state.to(device) for state in path()]
    predictor = fed(name, states)
    assert torch.equal(predictor.predict(0), states[-1])


@pytest.mark.parametrize("horizon", [1, 2, 40, 10**9])
def test_a_prediction_is_finite_and_looks_like_the_state(
    name: str, device: str, horizon: int
) -> None:
    states = [state.to(device) for state in path()]
    predicted = fed(name, states).predict(horizon)
    assert predicted.shape == states[-1].shape
    assert predicted.dtype == states[-1].dtype
    assert predicted.device == states[-1].device
    assert bool(torch.isfinite(predicted).all())
    assert not predicted.requires_grad


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_the_dtype_is_kept(name: str, dtype: torch.dtype) -> None:
    states = path(dtype=dtype)
    predictor = fed(name, states)
    assert predictor.predict(3).dtype == dtype
    assert torch.equal(predictor.predict(0), states[-1])


def test_values_that_overflow_are_answered_with_the_last_state(name: str) -> None:
    largest = torch.finfo(torch.float32).max
    states = [torch.tensor([0.1 * step * largest, 1.0]) for step in range(1, 10)]
    predictor = fed(name, states)
    predicted = predictor.predict(1000)
    assert bool(torch.isfinite(predicted).all())
    if predictor.num_refused:
        assert torch.equal(predicted, states[-1])


def test_before_any_observation_it_refuses(name: str) -> None:
    predictor = predictors.create(name)
    assert not predictor.ready
    with pytest.raises(ValueError, match="observed"):
        predictor.predict(1)


def test_until_ready_it_predicts_the_last_state(name: str) -> None:
    predictor = predictors.create(name)
    for clock, state in enumerate(path()):
        predictor.observe(clock, state)
        if predictor.ready:
            break
        assert torch.equal(predictor.predict(5), state)
    assert predictor.ready


@pytest.mark.parametrize("horizon", [-1, -(10**6), 1.5, True])
def test_a_horizon_that_is_no_number_of_steps_is_refused(name: str, horizon: Any) -> None:
    with pytest.raises(ConfigError, match="horizon"):
        fed(name, path()).predict(horizon)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_state_that_is_not_finite_is_refused_and_leaves_no_trace(name: str, value: float) -> None:
    predictor, twin = fed(name, path(8)), fed(name, path(8))
    broken = path()[8]
    broken[7] = value
    with pytest.raises(NonFiniteError, match="clock 50"):
        predictor.observe(50, broken)
    assert torch.equal(predictor.predict(4), twin.predict(4))
    for each in (predictor, twin):
        each.observe(11, path()[8])
    assert torch.equal(predictor.predict(4), twin.predict(4))


def test_a_stage_without_parameters(name: str) -> None:
    predictor = fed(name, [torch.zeros(0)] * NUM_STATES)
    assert predictor.predict(7).shape == (0,)
    twin = predictors.create(name)
    twin.load_state_dict(predictor.state_dict())
    assert twin.predict(7).shape == (0,)


@pytest.mark.parametrize("clock", [26, 25, 0])
def test_a_clock_that_does_not_grow_is_refused(name: str, clock: int) -> None:
    predictor = fed(name, path())  # the last clock is 26
    with pytest.raises(ValueError, match="clock"):
        predictor.observe(clock, path()[0])
    predictor.reset()
    predictor.observe(clock, path()[0])
    assert torch.equal(predictor.predict(0), path()[0])


@pytest.mark.parametrize(
    "state", [torch.zeros(NUM_VALUES + 1), torch.zeros(1, NUM_VALUES), torch.zeros(37).long()]
)
def test_a_state_of_another_form_is_refused(name: str, state: Tensor) -> None:
    with pytest.raises(ValueError, match="state"):
        fed(name, path()).observe(99, state)


def test_clocks_may_have_gaps(name: str) -> None:
    predictor = predictors.create(name)
    for index, state in enumerate(path()):
        predictor.observe(10 + index * index, state)
    assert bool(torch.isfinite(predictor.predict(5)).all())


def test_reset_leaves_nothing(name: str) -> None:
    predictor = fed(name, path())
    predictor.reset()
    assert not predictor.ready
    for clock, state in enumerate(path(9), 3):
        predictor.observe(clock, state)
    assert torch.equal(predictor.predict(6), fed(name, path(9)).predict(6))


def test_it_keeps_no_reference_to_what_it_is_given_or_gives(name: str) -> None:
    predictor, twin = predictors.create(name), fed(name, path())
    for clock, state in enumerate(path(), 3):
        given = state.clone().requires_grad_()
        predictor.observe(clock, given)
        with torch.no_grad():
            given.zero_()
    for horizon in (0, 4):
        predictor.predict(horizon).fill_(7.0)
        predicted = predictor.predict(horizon)
        assert torch.equal(predicted, twin.predict(horizon))
        assert not predicted.requires_grad


def test_a_prediction_changes_nothing(name: str) -> None:
    asked, silent = predictors.create(name), predictors.create(name)
    for clock, state in enumerate(path()):
        asked.observe(clock, state)
        asked.predict(3)
        silent.observe(clock, state)
    assert torch.equal(asked.predict(8), silent.predict(8))


@pytest.mark.parametrize("num_states", [0, 1, 2, 3, NUM_STATES])
def test_it_goes_on_from_a_checkpoint_bit_for_bit(name: str, num_states: int) -> None:
    predictor = fed(name, path()[:num_states])
    saved = predictor.state_dict()
    assert is_plain(saved)
    # As a checkpoint holds it: tensors in safetensors, which refuses shared memory.
    reread = load(save(tensors_in(saved)))
    assert all(torch.equal(reread[key], value) for key, value in tensors_in(saved).items())
    twin = predictors.create(name)
    twin.load_state_dict(saved)
    for clock, state in enumerate(path()[num_states:], 3 + num_states):
        predictor.observe(clock, state)
        twin.observe(clock, state)
        assert torch.equal(predictor.predict(5), twin.predict(5))
    later = predictor.state_dict()
    predictor.load_state_dict(saved)  # what was saved has not moved on since
    again = predictor.state_dict()
    assert all(torch.equal(tensors_in(again)[key], kept) for key, kept in tensors_in(saved).items())
    predictor.load_state_dict(later)
    assert torch.equal(predictor.predict(5), twin.predict(5))


def test_a_foreign_checkpoint_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError):
        fed(name, path()).load_state_dict({"something": 1})


def test_its_memory_is_what_it_states(name: str) -> None:
    predictor = fed(name, path())
    held = sum(value.numel() for value in tensors_in(predictor.state_dict()).values())
    assert held <= predictor.copies * NUM_VALUES


def test_it_is_deterministic(name: str, device: str) -> None:
    states = [state.to(device) for state in path()]
    assert torch.equal(fed(name, states).predict(9), fed(name, states).predict(9))


def test_an_unknown_setting_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no setting"):
        predictors.create(name, {"no_such_setting_at_all": 1})
