"""Weights by samples and by staleness, the sum on tensors, the guard."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from freewheel.aggregation import rule_of, sample_weights, staleness_rules
from freewheel.aggregation.tensors import num_non_finite, weighted_sum
from freewheel.errors import ConfigError


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8))
def test_sample_weights_are_shares(counts: list[int]) -> None:
    weights = sample_weights(counts)
    if sum(counts) == 0:
        assert weights == (0.0,) * len(counts)
    else:
        assert weights == pytest.approx(list(np.array(counts) / np.sum(counts)))
        assert all(weight == 0.0 for weight, n in zip(weights, counts, strict=True) if n == 0)


def test_mean_of_uneven_batches_is_the_mean_over_all_samples() -> None:
    """Scenario 4: batches of 4 and 1."""
    samples = np.random.default_rng(0).normal(size=5)
    means = [torch.tensor(samples[:4].mean()), torch.tensor(samples[4:].mean())]
    whole = weighted_sum(means, sample_weights([4, 1]))
    assert float(whole) == pytest.approx(samples.mean(), rel=1e-12)


def test_a_negative_count_is_refused() -> None:
    with pytest.raises(ValueError, match=r"must be >= 0, got -3"):
        sample_weights([4, -3])


@pytest.mark.parametrize(
    ("spec", "by_staleness"),
    [
        ("none", {0: 1, 7: 1}),
        ("lr_over_n", {0: 1 / 8, 7: 1 / 8}),
        ("staleness_aware", {0: 1, 1: 1, 2: 1 / 2, 7: 1 / 7}),
        ("dynsgd", {0: 1, 1: 1 / 2, 7: 1 / 8}),
        ("fedasync_poly", {0: 1, 3: 1 / 2, 8: 1 / 3}),
        ({"name": "fedasync_poly", "a": 1.0, "alpha": 0.6}, {0: 0.6, 2: 0.2}),
        ("fedasync_hinge", {0: 1, 4: 1, 5: 1 / 11, 6: 1 / 21}),
        (["none", "dynsgd"], {3: 1 / 4}),
        ([], {3: 1}),
    ],
)
def test_rules_by_hand(spec: object, by_staleness: dict[int, float]) -> None:
    rule = rule_of(spec)  # type: ignore[arg-type]  # all forms that a user may write
    for staleness, factor in by_staleness.items():
        assert rule.factor(staleness, num_workers=8) == pytest.approx(factor)


def test_scaling_twice_for_staleness_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"LrOverN and DynSGD both rescale.*keep one"):
        rule_of(["lr_over_n", "dynsgd"])


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("dynsdg", "did you mean 'dynsgd'"),
        ({"a": 1}, "needs a name"),
        ({"name": "fedasync_hinge", "a": 0}, "slope a must be > 0, got 0"),
        ({"name": "fedasync_poly", "alpha": 2}, r"alpha must be in \(0, 1\], got 2"),
        (3, "is a name, a table"),
    ],
)
def test_bad_rules(spec: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rule_of(spec)  # type: ignore[arg-type]  # wrong on purpose


def test_every_rule_keeps_a_lone_fresh_worker_as_it_is() -> None:
    for name in staleness_rules.names():
        assert rule_of(name).factor(0, 1) == 1.0


def test_weighted_sum_leaves_out_what_weighs_nothing() -> None:
    bad, good = torch.tensor([math.nan, math.inf]), torch.tensor([1.0, -0.0])
    assert torch.equal(weighted_sum([bad, good], [0.0, 1.0]), good)
    assert torch.equal(weighted_sum([bad], [0.0]), torch.zeros(2))


def test_weighted_sum_does_not_write_to_its_inputs() -> None:
    first, second = torch.ones(3), torch.ones(3)
    assert torch.equal(weighted_sum([first, second], [0.5, 0.25]), torch.full((3,), 0.75))
    assert torch.equal(first, torch.ones(3))


def test_weighted_sum_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="1 tensors and 2 weights"):
        weighted_sum([torch.ones(1)], [0.5, 0.5])
    with pytest.raises(ValueError, match="one shape"):
        weighted_sum([torch.ones(1), torch.ones(2)], [0.5, 0.5])


def test_guard_counts_bad_values_and_no_overflow() -> None:
    """Scenario 15."""
    assert num_non_finite([torch.tensor([1.0, math.nan, -math.inf])]) == 2
    assert num_non_finite([torch.full((4,), 3e38), torch.tensor([True])]) == 0
