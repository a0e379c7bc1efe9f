"""What every sharder must do, ours and third parties': ``pytest --pyargs freewheel.contract``."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from freewheel.errors import ConfigError, DataError
from freewheel.sharding import ShardingWarning, assign, sharders
from freewheel.sharding.samples import collect
from freewheel.sharding.shares import shard_sizes

# skewed shards may be empty: only the test of that looks at the warning
pytestmark = pytest.mark.filterwarnings("ignore::freewheel.sharding.ShardingWarning")

NUM_SAMPLES = 203
WORKERS = (1, 4, 7)
SPEEDS = (1.0, 1.0, 2.0, 4.0)


@pytest.fixture(params=sharders.names())
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def data(num_samples: int = NUM_SAMPLES, seed: int = 3) -> tuple[NDArray[Any], NDArray[Any]]:
    """Three classes of unlike sizes, the smallest smaller than most numbers of workers."""
    rng = np.random.default_rng(seed)
    labels = np.where(np.arange(num_samples) % 67 == 0, 2, np.arange(num_samples) % 5 == 0)
    features = rng.normal(size=(num_samples, 6)) + 2.0 * labels[:, None]
    return features, labels.astype(np.int64)


class Streamed:
    """The same rows, readable only from first to last in batches."""

    def __init__(self, rows: NDArray[Any]) -> None:
        self.rows = rows

    @property
    def num_samples(self) -> int:
        return len(self.rows)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return self.rows.shape[1:]

    def batches(self, num_rows: int) -> Iterator[NDArray[Any]]:
        for first in range(0, len(self.rows), num_rows):
            yield self.rows[first : first + num_rows].copy()


def as_lists(shards: list[NDArray[np.int64]]) -> list[list[int]]:
    return [shard.tolist() for shard in shards]


@pytest.mark.parametrize("workers", WORKERS)
def test_every_sample_is_assigned_once_or_as_the_method_says(name: str, workers: int) -> None:
    features, labels = data()
    shards = assign(features, labels, name, workers=workers)
    assert len(shards) == workers
    counts = np.bincount(np.concatenate(shards), minlength=NUM_SAMPLES)
    assert len(counts) == NUM_SAMPLES
    assert counts.min() >= 1
    if sharders.create(name).exact:
        assert counts.max() == 1
    else:
        assert set(counts.tolist()) <= {1, workers}  # copied to all workers, or to one


@pytest.mark.parametrize("workers", WORKERS)
def test_a_shard_is_an_ascending_int64_array_without_repeats(name: str, workers: int) -> None:
    features, labels = data()
    for shard in assign(features, labels, name, workers=workers):
        assert isinstance(shard, np.ndarray)
        assert shard.dtype == np.int64
        assert shard.ndim == 1
        assert (np.diff(shard) > 0).all()


@pytest.mark.parametrize("workers", WORKERS)
def test_sizes_are_within_one(name: str, workers: int) -> None:
    sharder = sharders.create(name)
    features, labels = data()
    sizes = [len(shard) for shard in assign(features, labels, name, workers=workers)]
    if sharder.sized:
        assert max(sizes) - min(sizes) <= 1
    else:
        assert sharder.__doc__ is not None
        assert "sizes" in sharder.__doc__.lower() or "differ" in sharder.__doc__.lower()


def test_sizes_follow_speeds(name: str) -> None:
    features, labels = data()
    shards = assign(features, labels, name, workers=4, speeds=SPEEDS)
    asked = shard_sizes(NUM_SAMPLES, 4, SPEEDS).tolist()
    assert sum(asked) == NUM_SAMPLES
    if sharders.create(name).sized:
        assert [len(shard) for shard in shards] == asked
    covered = np.unique(np.concatenate(shards))
    assert covered.tolist() == list(range(NUM_SAMPLES))


def test_the_same_seed_gives_the_same_shards(name: str) -> None:
    features, labels = data()
    first = assign(features, labels, name, workers=5, seed=11)
    np.random.seed(1)  # global state must not matter
    again = assign(features.copy(), labels.copy(), name, workers=5, seed=11)
    assert as_lists(first) == as_lists(again)


def test_how_features_are_stored_does_not_matter(name: str) -> None:
    features, labels = data()
    whole = assign(features.astype(np.float32), labels, name, workers=5)
    streamed = assign(Streamed(features.astype(np.float32)), labels, name, workers=5)
    strided = assign(np.asfortranarray(features.astype(np.float32)), labels, name, workers=5)
    assert as_lists(whole) == as_lists(streamed) == as_lists(strided)


def test_arguments_are_not_modified(name: str) -> None:
    features, labels = data()
    kept_features, kept_labels = features.copy(), labels.copy()
    assign(features, labels, name, workers=3)
    np.testing.assert_array_equal(features, kept_features)
    np.testing.assert_array_equal(labels, kept_labels)


def test_more_workers_than_samples_leave_empty_shards_and_warn(name: str) -> None:
    features, labels = data(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shards = assign(features, labels, name, workers=8)
    assert len(shards) == 8
    assert np.unique(np.concatenate(shards)).tolist() == [0, 1, 2]
    if any(len(shard) == 0 for shard in shards):
        assert any(issubclass(one.category, ShardingWarning) for one in caught)
    else:
        assert not sharders.create(name).exact  # only copies can fill eight shards


def test_one_sample(name: str) -> None:
    shards = assign(np.ones((1, 2)), [0], name, workers=1)
    assert as_lists(shards) == [[0]]


def test_samples_that_are_all_alike(name: str) -> None:
    shards = assign(np.ones((24, 3)), np.zeros(24, dtype=int), name, workers=4)
    assert np.unique(np.concatenate(shards)).tolist() == list(range(24))


def test_a_class_with_one_sample(name: str) -> None:
    features, labels = data(40)
    labels[17] = 9
    shards = assign(features, labels, name, workers=4)
    assert np.unique(np.concatenate(shards)).tolist() == list(range(40))


def test_labels_of_every_kind(name: str) -> None:
    features, labels = data(60)
    rng = np.random.default_rng(0)
    several = (rng.random((60, 4)) < 0.3).astype(int)
    kinds: list[Any] = [labels.astype(str), features[:, 0], several, labels.astype(bool)]
    for kind in kinds:
        shards = assign(features, kind, name, workers=4)
        assert np.unique(np.concatenate(shards)).tolist() == list(range(60))


def test_no_labels(name: str) -> None:
    features, _ = data(60)
    if sharders.create(name).needs_labels:
        with pytest.raises(DataError, match="needs labels"):
            assign(features, None, name, workers=4)
    else:
        shards = assign(features, None, name, workers=4)
        assert np.unique(np.concatenate(shards)).tolist() == list(range(60))


def test_features_that_are_nan_are_named_or_not_read(name: str) -> None:
    features, labels = data(60)
    features[41, 2] = np.nan
    if sharders.create(name).reads_features:
        with pytest.raises(DataError, match=r"feature 2 of sample 41 is nan"):
            assign(features, labels, name, workers=4)
    else:
        assign(features, labels, name, workers=4)


def test_no_features_where_they_are_needed(name: str) -> None:
    _, labels = data(60)
    if sharders.create(name).reads_features:
        with pytest.raises(DataError, match="pass features"):
            assign(None, labels, name, workers=4)
    else:
        assert len(assign(None, labels, name, workers=4)) == 4


def test_bad_arguments_are_refused(name: str) -> None:
    features, labels = data(60)
    with pytest.raises(ConfigError, match="workers must be an integer >= 1, got 0"):
        assign(features, labels, name, workers=0)
    with pytest.raises(ConfigError, match="seed must be an integer >= 0, got -1"):
        assign(features, labels, name, workers=2, seed=-1)
    with pytest.raises(ConfigError, match="one value per worker: got 3 for 2 workers"):
        assign(features, labels, name, workers=2, speeds=[1, 2, 3])
    with pytest.raises(ConfigError, match="speeds must be positive"):
        assign(features, labels, name, workers=2, speeds=[1, 0])
    with pytest.raises(ConfigError, match=r"has no setting 'nonsense'"):
        assign(features, labels, name, workers=2, nonsense=1)
    with pytest.raises(DataError, match="60 samples but 59 labels"):
        assign(features, labels[:-1], name, workers=2)
    with pytest.raises(DataError, match="source is empty"):
        assign(features[:0], labels[:0], name, workers=2)


def test_a_sharder_says_what_it_is(name: str) -> None:
    sharder = sharders.create(name)
    assert sharder.name == name
    assert type(sharder).__doc__


def test_threads_process_and_processor_do_not_matter(name: str) -> None:
    program = (
        "import sys, numpy as np\n"
        "from freewheel.contract.test_sharders import as_lists, data\n"
        "from freewheel.sharding import assign\n"
        f"features, labels = data()\nprint(as_lists(assign(features, labels, {name!r}, workers=5)))"
    )
    features, labels = data()
    expected = str(as_lists(assign(features, labels, name, workers=5)))
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "7"}
    if platform.machine() == "x86_64":  # other kernels, which add up in another order
        environment["OPENBLAS_CORETYPE"] = "Prescott"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == expected


def test_samples_can_be_collected_twice() -> None:
    features, labels = data()
    samples = collect(features, labels)
    assert [len(batch) for batch in samples.batches(100)] == [100, 100, 3]
    assert [len(batch) for batch in samples.batches(100)] == [100, 100, 3]
