"""Cuts by cost: against brute force, under memory, ties broken the same way; and measuring."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from freewheel.errors import ConfigError, ModelError
from freewheel.models import LayerCost, balance, measure_costs, partition

# Sums of small multiples of 1/8 are exact in binary, so equal means equal.
layer = st.tuples(
    st.integers(0, 16).map(lambda eighths: eighths / 8),
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9).map(lambda count: 125_000 * count),
)


def costs_of(rows: list[tuple[float, int, int, int]]) -> list[LayerCost]:
    return [LayerCost(f"layer{index}", *row) for index, row in enumerate(rows)]


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(layer, min_size=1, max_size=7),
    stages=st.integers(1, 4),
    rate=st.sampled_from([None, 1.0, 8.0]),
    memory=st.sampled_from([None, 20, 60]),
    in_flight=st.integers(1, 2),
)
def test_against_brute_force(
    rows: list[tuple[float, int, int, int]],
    stages: int,
    rate: float | None,
    memory: int | None,
    in_flight: int,
) -> None:
    stages = min(stages, len(rows))
    choices = []
    for cut in combinations(range(1, len(rows)), stages - 1):
        slowest, crossing, fits = 0.0, 0, True
        for start, stop in pairwise((0, *cut, len(rows))):
            part = rows[start:stop]
            sent = rows[stop - 1][3] if stop < len(rows) else 0
            crossing += sent
            seconds = sum(row[0] for row in part) + (sent * 8 / (rate * 1e6) if rate else 0)
            slowest = max(slowest, seconds)
            held = sum(row[1] + in_flight * row[2] for row in part)
            fits = fits and (memory is None or held <= memory)
        if fits:
            choices.append((slowest, crossing, cut))
    arguments = {"rate_mbit": rate, "memory_bytes": memory, "in_flight": in_flight}
    if choices:
        expected = tuple(f"layer{end - 1}" for end in min(choices)[2])
        assert balance(costs_of(rows), stages, **arguments) == expected
    else:
        with pytest.raises(ModelError, match="use more stages"):
            balance(costs_of(rows), stages, **arguments)


def test_a_slow_link_moves_the_cut_to_where_little_crosses() -> None:
    costs = costs_of([(1.0, 0, 0, 1_000_000), (1.0, 0, 0, 1_000), (2.0, 0, 0, 0)])
    even = costs_of([(2.0, 0, 0, 1_000_000), (1.0, 0, 0, 1_000), (1.0, 0, 0, 0)])
    assert balance(costs, 2) == ("layer1",)
    assert balance(even, 2) == ("layer0",)
    # 8 Mbit/s: one second for the million bytes, so 2 + 1 s against 3 + 0.001 s; at 4, 2 + 2.
    assert balance(even, 2, rate_mbit=8.0) == ("layer0",)
    assert balance(even, 2, rate_mbit=4.0) == ("layer1",)


def test_the_least_memory_is_named_when_nothing_fits() -> None:
    costs = costs_of([(1.0, 50, 0, 0), (1.0, 30, 0, 0), (1.0, 30, 0, 0)])
    with pytest.raises(ModelError, match=r"needs 60 \(cut after layer0\)"):
        balance(costs, 2, memory_bytes=59)
    assert balance(costs, 2, memory_bytes=60) == ("layer0",)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stages": 0}, "stages must be >= 1"),
        ({"stages": 3}, "3 stages but the model has 2 layers"),
        ({"stages": 2, "rate_mbit": 0.0}, "rate_mbit must be > 0, got 0.0"),
        ({"stages": 2, "memory_bytes": -1}, "memory_bytes must be > 0, got -1"),
        ({"stages": 2, "in_flight": 0}, "in_flight must be >= 1, got 0"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        balance(costs_of([(1.0, 1, 1, 1)] * 2), **arguments)


def test_measured_bytes_are_those_of_the_arithmetic() -> None:
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3), nn.Softmax(dim=1))
    model[2].weight.requires_grad_(False)
    costs = measure_costs(model, torch.randn(5, 6), optimizer_states=1, repeats=1)
    # Parameters, their gradients, one state: 3 x 70 and, with a frozen weight, 33 + 2 x 3 floats.
    assert [cost.state_bytes for cost in costs] == [840, 0, 4 * 39, 0]
    # Float32 outputs forward and their gradients backward.
    assert [cost.cut_bytes for cost in costs] == [400, 400, 120, 120]
    # A linear layer keeps its input for its weight's gradient; tanh and softmax their outputs.
    assert [cost.activation_bytes for cost in costs] == [120, 200, 0, 60]
    assert all(cost.compute_s > 0 for cost in costs)


def test_measuring_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    model[0].weight.grad = torch.ones(4, 4)
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(1)
    expected = torch.random.get_rng_state()
    measure_costs(model, torch.randn(8, 4, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(torch.random.get_rng_state(), expected)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert torch.equal(model[0].weight.grad, torch.ones(4, 4))
    assert model[0].bias.grad is None
    assert [module.training for module in model] == [True, False, True]


def test_balanced_cuts_by_memory_only_where_memory_decides() -> None:
    wide = nn.Sequential(*(nn.Linear(32, 32) for _ in range(4)))
    # Four layers of 1,056 parameters with gradient and two states, and 2 x 32 inputs: 17,152 bytes.
    parts = partition(wide, 4, "balanced", torch.randn(2, 32), memory_bytes=17_152)
    assert parts.cuts == ("0", "1", "2")
    with pytest.raises(ModelError, match="needs 17152"):
        partition(wide, 4, "balanced", torch.randn(2, 32), memory_bytes=17_151)


@pytest.mark.parametrize("wrong", [{"repeats": 0}, {"optimizer_states": -1}])
def test_bad_measurements_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="repeats must be >= 1"):
        measure_costs([nn.Linear(1, 1)], torch.ones(1, 1), **wrong)
