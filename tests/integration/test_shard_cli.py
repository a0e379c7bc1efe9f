"""``freewheel shard`` as a person uses it: every kind of source, and nothing half written."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from cli import freewheel, start
from freewheel.errors import EXIT_CONFIG, EXIT_DATA, EXIT_INTERRUPTED
from freewheel.sharding import assign, load_manifest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and peak memory of POSIX")


def blobs(num: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, num)
    features = 3.0 * np.eye(4)[labels] + rng.normal(size=(num, 4))
    return features.astype(np.float32), labels


def counts(out: Path, labels: np.ndarray) -> np.ndarray:
    manifest = load_manifest(out)
    return np.array(
        [
            np.bincount(labels[manifest.indices(rank)], minlength=int(labels.max()) + 1)
            for rank in range(manifest.num_workers)
        ]
    )


def test_an_array_is_sharded_as_the_library_does_it(tmp_path: Path) -> None:
    features, labels = blobs()
    np.savez(tmp_path / "d.npz", features=features, labels=labels)
    result = freewheel(
        "shard", str(tmp_path / "d.npz"), "--workers", "5", "--seed", "3", "--json",
        "--out", str(tmp_path / "out"), "--materialise",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)  # nothing else on stdout
    expected = assign(features, labels, "balanced", workers=5, seed=3)
    manifest = load_manifest(tmp_path / "out")
    for rank in range(5):
        np.testing.assert_array_equal(manifest.indices(rank), expected[rank])
        rows = np.load(tmp_path / "out" / manifest.data[rank]["features"])
        np.testing.assert_array_equal(rows, features[expected[rank]])
        marks = np.load(tmp_path / "out" / manifest.data[rank]["labels"])
        np.testing.assert_array_equal(marks, labels[expected[rank]])
    assert report["strategy"] == "balanced"
    assert report["sizes"] == [80] * 5
    assert report["labels"]["counts"] == counts(tmp_path / "out", labels).tolist()
    assert report["features"]["times_lower"] > 5
    assert json.loads((tmp_path / "out" / "report.json").read_text())["sizes"] == [80] * 5
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Samples of each label per worker" in page
    assert "<script src=" not in page  # it opens offline
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.npz", "out"]


def test_every_other_kind_of_source(tmp_path: Path) -> None:
    features, labels = blobs(120)
    np.save(tmp_path / "x.npy", features)
    np.save(tmp_path / "y.npy", labels)
    header = bytes([0, 0, 13, 2]) + np.array(features.shape, ">u4").tobytes()
    with gzip.open(tmp_path / "t-images-idx3-float.gz", "wb") as file:
        file.write(header + features.astype(">f4").tobytes())
    with gzip.open(tmp_path / "t-labels-idx1-float.gz", "wb") as file:
        file.write(bytes([0, 0, 8, 1, 0, 0, 0, 120]) + labels.astype(np.uint8).tobytes())
    lines = ["a,b,c,d,label", *(f"{','.join(map(repr, row))},{y}" for row, y in zip(
        features.astype(float).tolist(), labels.tolist(), strict=True))]  # fmt: skip
    (tmp_path / "t.csv").write_bytes(("\ufeff" + "\r\n".join(lines)).encode())
    sources: list[list[str]] = [
        [str(tmp_path / "x.npy"), "--labels", str(tmp_path / "y.npy")],
        [str(tmp_path / "t-images-idx3-float.gz")],
        [str(tmp_path / "t.csv"), "--no-standardise"],
    ]
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = {name: features[:, column] for column, name in enumerate("abcd")}
    pq.write_table(pa.table({**table, "label": labels}), tmp_path / "t.parquet")
    sources.append([str(tmp_path / "t.parquet"), "--no-standardise"])
    found = []
    for number, source in enumerate(sources):
        out = tmp_path / f"out{number}"
        result = freewheel("shard", *source, "--workers", "4", "--out", str(out))
        assert result.returncode == 0, result.stderr
        assert "report.html" in result.stdout.replace("\n", "")
        manifest = load_manifest(out)
        found.append([manifest.indices(rank).tolist() for rank in range(4)])
        assert (counts(out, labels).max(axis=0) - counts(out, labels).min(axis=0)).max() <= 1
    assert all(shards == found[0] for shards in found)
    source = json.loads((tmp_path / "out0" / "manifest.json").read_text())["source"]
    content = (tmp_path / "y.npy").read_bytes()
    assert (source["labels"], source["labels_sha256"]) == (
        "y.npy",
        hashlib.sha256(content).hexdigest(),
    )


def test_a_folder_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for number in range(6):
            pixels = np.random.default_rng(number).integers(0, 255, (9, 9, 3), dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / "pets" / name / f"{number}.png")
    result = freewheel(
        "shard", str(tmp_path / "pets"), "--workers", "3", "--out", str(tmp_path / "out"),
        "--image-size", "8", "--divide-by", "255", "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["labels"] | {"mean": 0, "total_variation": 0} == {
        "names": ["cat", "dog"], "counts": [[2, 2]] * 3, "mean": 0, "total_variation": 0,
    }  # fmt: skip


def test_gradients_of_a_model_and_its_features(tmp_path: Path) -> None:
    features, labels = blobs()
    np.savez(tmp_path / "d.npz", features=features, labels=labels)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    batch = torch.export.Dim("batch", min=1)
    for name, module in (("model", model), ("body", model[:2])):
        program = torch.export.export(module, (torch.zeros(2, 4),), dynamic_shapes=({0: batch},))
        torch.export.save(program, tmp_path / f"{name}.pt2")
    result = freewheel(
        "shard", str(tmp_path / "d.npz"), "--workers", "4", "--out", str(tmp_path / "out"),
        "--model", str(tmp_path / "model.pt2"), "--embedding", str(tmp_path / "body.pt2"), "--json",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    gradients = json.loads(result.stdout)["gradients"]
    assert len(gradients["per_worker"]) == 4
    assert gradients["times_lower"] > 2


@pytest.mark.parametrize(
    ("text", "options", "code", "message"),
    [
        ("a,label\n1,x\n2\n", [], EXIT_DATA, "line 3: 1 fields"),
        ("a,label\n1,x\nnan,x\n", [], EXIT_DATA, "feature 0 of sample 1 is nan"),
        ("a,label\n", [], EXIT_DATA, "there is no sample to assign"),
        ("a,label\n1,x\n", ["--strategy", "balance"], EXIT_CONFIG, "did you mean 'balanced'"),
        ("a,label\n1,x\n", ["--set", "sweep=1"], EXIT_CONFIG, "did you mean 'sweeps'"),
        ("a,label\n1,x\n", ["--workers", "0"], EXIT_CONFIG, "workers must be an integer >= 1"),
        ("a,label\n1,x\n", ["--speeds", "1,b"], EXIT_CONFIG, "numbers separated by commas"),
        ("a,label\n1,x\n", ["--labels", "lable"], EXIT_DATA, "did you mean 'label'"),
        ("a,label\n1,x\n", ["--divide-by", "0"], EXIT_CONFIG, "must not be 0"),
    ],
)
def test_errors_leave_nothing_behind(
    tmp_path: Path, text: str, options: list[str], code: int, message: str
) -> None:
    (tmp_path / "d.csv").write_text(text)
    workers = [] if "--workers" in options else ["--workers", "1"]
    result = freewheel(
        "shard", str(tmp_path / "d.csv"), "--out", str(tmp_path / "out"), *workers, *options
    )
    assert result.returncode == code, result.stderr
    assert message in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["d.csv"]


def test_an_old_folder_is_replaced_only_when_asked(tmp_path: Path) -> None:
    features, labels = blobs(40)
    np.savez(tmp_path / "d.npz", features=features, labels=labels)
    command = ["shard", str(tmp_path / "d.npz"), "--strategy", "stratified", "--out",
               str(tmp_path / "out"), "--workers"]  # fmt: skip
    assert freewheel(*command, "2").returncode == 0
    refused = freewheel(*command, "3")
    assert refused.returncode == EXIT_CONFIG
    assert "not empty" in refused.stderr
    assert load_manifest(tmp_path / "out").num_workers == 2
    assert freewheel(*command, "3", "--overwrite").returncode == 0
    assert load_manifest(tmp_path / "out").num_workers == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    features, labels = blobs(200_000)
    np.savez(tmp_path / "d.npz", features=features, labels=labels)
    process = start("shard", str(tmp_path / "d.npz"), "--out", str(tmp_path / "out"))
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".out.*.part")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_INTERRUPTED, err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["d.npz"]


MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_features(tmp_path: Path) -> None:
    def peak_mb(num: int) -> float:
        file, out = tmp_path / f"{num}.npy", tmp_path / f"out{num}"
        np.save(file, np.random.default_rng(0).normal(size=(num, 64)))
        # started by a small process, because a child's peak begins with that of its parent
        done = subprocess.run(
            [
                *(sys.executable, "-c", MEASURED, sys.executable, "-m", "freewheel.cli.main"),
                *("shard", str(file), "--out", str(out)),
                *("--set", "components=8", "--set", "sweeps=1", "--set", "clusters=1"),
            ],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return int(done.stdout) / 1024

    small, large = peak_mb(50_000), peak_mb(250_000)
    grown = 200_000 * 64 * 8 / 2**20
    # what grows is the worker, stratum, order and index of each sample
    assert large - small < 0.5 * grown
