from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import make_classification

from freewheel.errors import ConfigError
from freewheel.sharding import assign
from freewheel.sharding.balance import Balancer, Vectors, to_grid
from freewheel.sharding.clusters import ClassClusters
from freewheel.sharding.distribution_aware import share_clusters
from freewheel.sharding.embedding import MappedFeatures, Projection, choose_rows
from freewheel.sharding.metrics import feature_discrepancy
from freewheel.sharding.samples import collect
from freewheel.sharding.strata import make_strata
from freewheel.sharding.surrogate import Surrogate, sketch_outer


def dealt(num: int, workers: int, strata: int) -> tuple[Vectors, np.ndarray]:
    rng = np.random.default_rng(0)
    codes = (np.arange(num) % strata).astype(np.int32)
    own, shared = rng.normal(size=(num, 4)), rng.normal(size=(num, 3))
    for stratum in range(strata):
        own[codes == stratum] -= own[codes == stratum].mean(axis=0)
    vectors = Vectors(to_grid(own), to_grid(shared - shared.mean(axis=0)), codes)
    owner = ((np.arange(num) // strata) % workers).astype(np.int32)
    return vectors, owner


def objective(vectors: Vectors, owner: np.ndarray, sizes: np.ndarray) -> float:
    """The definition, by plain loops."""
    total = 0.0
    for worker, size in enumerate(sizes):
        mine = owner == worker
        for stratum in np.unique(vectors.codes):
            total += (vectors.own[mine & (vectors.codes == stratum)].sum(0) ** 2).sum() / size**2
        total += (vectors.shared[mine].sum(0) ** 2).sum() / size**2
    return total


@pytest.mark.parametrize("unequal", [False, True])
def test_the_objective_is_as_defined_and_never_rises(unequal: bool) -> None:
    vectors, owner = dealt(240, 4, 3)
    if unequal:
        owner = np.where(owner == 3, 0, owner).astype(np.int32)
    counts = np.zeros((4, 3))
    np.add.at(counts, (owner, vectors.codes), 1)
    sizes = np.maximum(np.bincount(owner, minlength=4), 1)
    balancer = Balancer(sizes, 3, 4, 3)
    before = objective(vectors, owner, sizes)
    balancer.balance(vectors, owner, 0, np.random.default_rng(0))
    assert balancer.objective() == pytest.approx(before)
    values = [before]
    rng = np.random.default_rng(1)
    for _ in range(4):
        fresh = Balancer(sizes, 3, 4, 3)
        fresh.balance(vectors, owner, 1, rng)
        values.append(fresh.objective())
        assert fresh.objective() == pytest.approx(objective(vectors, owner, sizes))
    assert all(later <= earlier for earlier, later in itertools.pairwise(values))
    assert values[-1] < 0.3 * values[0]
    after = np.zeros((4, 3))
    np.add.at(after, (owner, vectors.codes), 1)
    np.testing.assert_array_equal(after, counts)


def test_one_block_is_dealt_in_the_best_of_all_ways() -> None:
    rng = np.random.default_rng(3)
    held = to_grid(rng.normal(size=(4, 2)))
    new = to_grid(rng.normal(size=(4, 2)))
    none, codes = np.empty((4, 0)), np.zeros(4, np.int32)
    balancer = Balancer(np.full(4, 2), 1, 2, 0)
    balancer.balance(Vectors(held, none, codes), np.arange(4, dtype=np.int32), 0, rng)
    owner = np.arange(4, dtype=np.int32)
    balancer.balance(Vectors(new, none, codes), owner, 1, rng)
    best = min(
        ((held + new[list(order)]) ** 2).sum() / 4 for order in itertools.permutations(range(4))
    )
    assert balancer.objective() == pytest.approx(best)


def test_balanced_lowers_feature_discrepancy_below_all_others() -> None:
    features, labels = make_classification(
        1200, 10, n_informative=6, n_classes=3, n_clusters_per_class=2, random_state=0
    )
    found = {
        name: feature_discrepancy(features, assign(features, labels, name, workers=6)).mean
        for name in ("random", "stratified", "class_cluster", "balanced")
    }
    assert found["balanced"] < 0.1 * min(found["stratified"], found["class_cluster"])
    assert found["balanced"] < 0.05 * found["random"]


@pytest.mark.parametrize("kind", ["classes", "two classes", "regression", "multilabel", "none"])
def test_balanced_takes_labels_of_every_kind(kind: str) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(300, 5))
    labels = {
        "classes": np.arange(300) % 3,
        "two classes": features[:, 0] > 0,
        "regression": features @ np.ones(5),
        "multilabel": (features[:, :3] > 0.5).astype(int),
        "none": None,
    }[kind]
    shards = assign(features, labels, "balanced", workers=4, fit_rows=200)
    assert sorted(np.concatenate(shards).tolist()) == list(range(300))
    random = assign(features, labels, "random", workers=4)
    ours = feature_discrepancy(features, shards).mean
    assert ours < 0.3 * feature_discrepancy(features, random).mean


def test_class_cluster_shares_hidden_strata() -> None:
    rng = np.random.default_rng(5)
    hidden = np.repeat(np.arange(4), 60)
    features = 20.0 * np.eye(4)[hidden] + rng.normal(size=(240, 4))
    labels = hidden // 2  # two strata in each class
    shards = assign(features, labels, "class_cluster", workers=5)
    counts = np.array([np.bincount(hidden[shard], minlength=4) for shard in shards])
    assert (counts == 12).all()


@pytest.mark.parametrize("method", ["kmeans", "mixture"])
def test_the_number_of_clusters_is_found(method: str) -> None:
    rng = np.random.default_rng(6)
    scores = 30.0 * rng.permutation(np.repeat(np.arange(3.0), 50))[:, None] + rng.normal(
        size=(150, 2)
    )
    finder = ClassClusters("auto", method=method)  # type: ignore[arg-type]
    finder.fit(scores, np.zeros(150, np.int32), 1)
    assert finder.count == 3


def test_published_clusters_are_dealt_from_worker_0_and_sparse_ones_copied() -> None:
    codes = np.array([0, 0, 0, 0, 0, 1, 1, 2])
    shards = share_clusters(codes, 3, np.array([4, 4]))
    # cluster 0: samples 0-4 to 0, 1, 0, 1, 0; clusters 1 and 2 have at most 2 points: to both
    assert [shard.tolist() for shard in shards] == [[0, 2, 4, 5, 6, 7], [1, 3, 5, 6, 7]]


def test_distribution_aware_uses_twice_the_classes_by_default() -> None:
    centres = 50.0 * np.eye(4)
    features = np.repeat(centres, 8, axis=0)
    features[:, 0] += np.tile(np.arange(8) * 1e-3, 4)
    labels = np.repeat([0, 1], 16)  # two classes, four clusters
    shards = assign(features, labels, "distribution_aware", workers=2, embedding="raw")
    per_blob = np.array([np.bincount(shard // 8, minlength=4) for shard in shards])
    assert (per_blob == 4).all()


def test_sketches_keep_inner_products_on_average() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 3)), rng.normal(size=(2, 4))
    exact = (left[0] @ left[1]) * (right[0] @ right[1])
    draws = [sketch_outer(left, right, 64, np.random.default_rng(seed)) for seed in range(400)]
    products = np.array([made[0] @ made[1] for made in draws])
    assert abs(products.mean() - exact) < 4 * products.std() / np.sqrt(len(products))


def test_the_surrogates_error_is_prediction_less_target() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(60, 3))
    for labels in (np.arange(60) % 3, (np.arange(60) % 2).astype(bool)):
        strata = make_strata(labels, 60)
        net = Surrogate((1, 3), hidden=5, sketch=8).fit(scores, strata, np.arange(60))
        (error, hidden, *_), _ = net(scores, strata, slice(None))
        assert hidden.min() >= 0
        if strata.count == 3:
            np.testing.assert_allclose(error.sum(axis=1), 0, atol=1e-12)
            predictions = error + np.eye(3)[strata.codes]
        else:
            predictions = error + strata.codes[:, None]
        assert predictions.min() > 0
        assert predictions.max() < 1


def test_projection_is_that_of_scikit_learn() -> None:
    from sklearn.decomposition import PCA

    rows = np.random.default_rng(0).normal(size=(50, 6)) * np.arange(1, 7)
    expected = PCA(3, svd_solver="full").fit_transform(rows)
    found = Projection("pca", 3).fit(rows)(rows)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-9)


def test_standardising_makes_units_irrelevant() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(200, 4)), np.arange(200) % 2
    scaled = features * np.array([1.0, 1024.0, 2.0**-9, 1.0])  # powers of two scale exactly
    settings = {"workers": 3, "standardise": True, "epochs": (), "clusters": 1}
    first = assign(features, labels, "balanced", **settings)
    other = assign(scaled, labels, "balanced", **settings)
    assert [x.tolist() for x in first] == [x.tolist() for x in other]


def test_a_function_embeds_in_batches() -> None:
    seen = []

    def embed(batch: np.ndarray) -> np.ndarray:
        seen.append(batch.shape)
        return batch.reshape(len(batch), -1).sum(axis=1, keepdims=True)

    features = np.random.default_rng(0).normal(size=(50, 2, 3))
    shards = assign(features, None, "balanced", workers=5, embedding=embed)
    assert all(shape[1:] == (2, 3) for shape in seen)
    sums = [features[shard].sum() for shard in shards]
    assert np.ptp(sums) < 0.2 * features.sum(axis=(1, 2)).std() * np.sqrt(10)


def test_an_embedding_must_return_a_row_per_sample() -> None:
    with pytest.raises(ValueError, match="one row per sample"):
        MappedFeatures(collect(np.ones((3, 2)), None).features, lambda batch: batch[:0])  # type: ignore[arg-type]


def test_rare_strata_are_in_the_rows_that_are_fitted_on() -> None:
    labels = np.r_[np.zeros(10_000, int), np.ones(3, int)]
    samples = collect(np.zeros((10_003, 1)), labels)
    chosen = choose_rows(samples, make_strata(labels, 10_003), 100, np.random.default_rng(0))
    assert {10_000, 10_001, 10_002} <= set(chosen.tolist())
    assert len(chosen) <= 100


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"components": 0}, "components must be an integer >= 1"),
        ({"embedding": "umap"}, "unknown embedding 'umap'"),
        ({"sweeps": 0}, "sweeps must be an integer >= 1"),
        ({"epochs": (0,)}, "epochs must be integers >= 1"),
        ({"kind": "klasses"}, "did you mean 'classes'"),
        ({"sweep": 2}, "did you mean 'sweeps'"),
    ],
)
def test_settings_are_checked(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        assign(np.ones((4, 2)), [0, 1, 0, 1], "balanced", workers=2, **settings)


def test_so_many_classes_that_sums_would_not_fit_are_refused() -> None:
    features = np.random.default_rng(0).normal(size=(9000, 60))
    with pytest.raises(ConfigError, match=r'9000 classes x 200 workers x 60 .*kind="regression"'):
        assign(features, np.arange(9000), "balanced", workers=200)
    shards = assign(features, np.arange(9000), "balanced", workers=3, kind="regression", epochs=())
    assert [len(shard) for shard in shards] == [3000] * 3


def test_nothing_else_is_loaded() -> None:
    program = (
        "import sys, freewheel.sharding as s, numpy as np\n"
        "s.assign(np.eye(8), [0, 1] * 4, workers=2)\n"
        "own = {m for m in sys.modules if m.startswith('freewheel.')}\n"
        "print(sorted(m for m in own if not m.startswith('freewheel.sharding')))\n"
        "print('torch' in sys.modules, 'pydantic' in sys.modules, 'zmq' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split("\n")[:2] == [
        "['freewheel._version', 'freewheel.errors', 'freewheel.registry']",
        "False False False",
    ]
