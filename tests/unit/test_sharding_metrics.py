from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch.nn import functional

from freewheel.errors import DataError, ModelError
from freewheel.sharding import assign
from freewheel.sharding.metrics import (
    brown_forsythe,
    epoch_spread,
    feature_discrepancy,
    gradient_dispersion,
    holm,
    label_counts,
    label_total_variation,
    sd_ratio,
    worst_recall,
)


def test_label_total_variation_by_hand() -> None:
    # all: 3/4 a, 1/4 b; shard 0 all a: 1/2 (1/4 + 1/4); shard 1 half a: 1/2 (1/4 + 1/4)
    labels = ["a", "a", "a", "b"]
    found = label_total_variation([np.array([0, 1]), np.array([2, 3])], labels)
    np.testing.assert_allclose(found, [0.25, 0.25])


def test_an_empty_shard_has_no_distance() -> None:
    found = label_total_variation([np.array([0, 1]), np.array([], dtype=np.int64)], [0, 1])
    assert found[0] == 0
    assert np.isnan(found[1])


def test_label_counts_of_regression_are_by_bin() -> None:
    counts, names = label_counts([np.arange(50), np.arange(50, 100)], np.arange(100) / 7, bins=4)
    assert counts.tolist() == [[25, 25, 0, 0], [0, 0, 25, 25]]
    assert len(names) == 4


def test_feature_discrepancy_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(3.0, 2.0, size=(90, 4, 2))
    shards = assign(features, None, "random", workers=4, seed=1)
    flat = features.reshape(90, -1)
    variance = flat.var(axis=0).sum()
    expected = [((flat[shard].mean(0) - flat.mean(0)) ** 2).sum() / variance for shard in shards]
    np.testing.assert_allclose(feature_discrepancy(features, shards).per_worker, expected)
    per_feature = [
        (((flat[shard].mean(0) - flat.mean(0)) ** 2) / flat.var(axis=0)).mean() for shard in shards
    ]
    found = feature_discrepancy(features, shards, standardise=True).per_worker
    np.testing.assert_allclose(found, per_feature)


def test_random_shards_have_the_expected_discrepancy() -> None:
    features = np.random.default_rng(0).normal(size=(60, 3))
    found = [
        feature_discrepancy(features, assign(features, None, "random", workers=5, seed=seed))
        for seed in range(400)
    ]
    means = np.array([one.mean for one in found])
    assert abs(means.mean() - found[0].expected) < 4 * means.std() / 20


def test_gradient_dispersion_is_that_of_plain_pytorch() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 3))
    features = np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32)
    labels = np.arange(40) % 3
    shards = assign(features, labels, "random", workers=3)

    def gradient(rows: np.ndarray) -> np.ndarray:
        model.zero_grad()
        outputs = model(torch.from_numpy(features[rows]))
        functional.cross_entropy(outputs, torch.from_numpy(labels[rows])).backward()
        return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy()

    whole = gradient(np.arange(40))
    expected = [((gradient(shard) - whole) ** 2).sum() for shard in shards]
    found = gradient_dispersion(
        model, functional.cross_entropy, features, labels, [shards, [np.arange(40)]], batch_rows=7
    )
    np.testing.assert_allclose(found[0].per_worker, expected, rtol=1e-4)
    assert found[0].gradient_norm == pytest.approx(np.linalg.norm(whole), rel=1e-4)
    assert found[1].mean == pytest.approx(0.0, abs=1e-12)


def test_gradient_dispersion_leaves_the_model_as_it_was() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.5))
    before = [p.clone() for p in model.parameters()]
    x, y = np.ones((4, 2), np.float32), np.zeros(4, np.int64)
    gradient_dispersion(model, functional.cross_entropy, x, y, [[np.arange(4)]])
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))


def test_a_loss_that_is_nan_is_refused() -> None:
    model = torch.nn.Linear(1, 2)
    x, y = np.full((2, 1), np.inf, np.float32), np.zeros(2, np.int64)
    with pytest.raises(ModelError, match="loss of a batch is nan"):
        gradient_dispersion(model, functional.cross_entropy, x, y, [[np.arange(2)]])


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(ModelError, match="no parameter"):
        gradient_dispersion(
            torch.nn.ReLU(), functional.cross_entropy, np.ones((1, 1)), [0], [[np.arange(1)]]
        )


def test_sd_ratio_covers_the_truth() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        ratio = sd_ratio(rng.normal(0, 2, 60), rng.normal(0, 1, 60), resamples=500, seed=trial)
        hits += ratio.low <= 2.0 <= ratio.high
    # 200 trials at 95%: fewer than 170 has probability below 1e-7
    assert hits >= 170


def test_sd_ratio_of_a_constant_is_infinite_and_pairs_must_match() -> None:
    assert sd_ratio([1, 2, 3], [1, 1, 1]).value == np.inf
    with pytest.raises(DataError, match="got 3 and 2"):
        sd_ratio([1, 2, 3], [1, 2], paired=True)
    with pytest.raises(DataError, match="at least 2 runs"):
        sd_ratio([1], [1, 2])
    with pytest.raises(DataError, match="not finite"):
        sd_ratio([1, np.nan], [1, 2])


def test_brown_forsythe_is_an_analysis_of_variance_of_distances() -> None:
    rng = np.random.default_rng(0)
    groups = [rng.normal(0, scale, 30) for scale in (1.0, 1.5, 2.0)]
    distances = [np.abs(group - np.median(group)) for group in groups]
    expected = stats.f_oneway(*distances)
    assert brown_forsythe(*groups) == pytest.approx((expected.statistic, expected.pvalue))


def test_epoch_spread_looks_at_the_last_fifth() -> None:
    curve = np.r_[np.full(8, 100.0), 1.0, 3.0]
    assert epoch_spread(curve).tolist() == pytest.approx([np.sqrt(2.0)])
    with pytest.raises(DataError, match="two epochs"):
        epoch_spread([[1.0]])


def test_holm_by_hand() -> None:
    # sorted .005 .01 .03 .04 times 4 3 2 1 = .02 .03 .06 .04, then running maxima
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])


def test_worst_stratum() -> None:
    found = worst_recall([0, 0, 1, 1], [0, 0, 0, 1], strata=["a", "a", "b", "c"])
    assert found.value == 0.0
    assert found.group == "b"
    with pytest.raises(DataError, match="same shape"):
        worst_recall([0], [0, 1])
