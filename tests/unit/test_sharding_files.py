from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from freewheel.errors import ConfigError, DataError
from freewheel.sharding import assign, load_manifest, save_manifest
from freewheel.sharding.aside import written_aside
from freewheel.sharding.sampler import ShardSampler
from freewheel.sharding.sources import open_source

SHARDS = [np.array([0, 3]), np.array([1]), np.array([], dtype=np.int64)]


def rows_of(path: Path, scratch: Path, **options: str) -> list[list[float]]:
    source = open_source(path, scratch, **options)
    assert source.features is not None
    return np.concatenate([*source.features.batches(2)]).tolist()


def test_a_manifest_comes_back(tmp_path: Path) -> None:
    path = save_manifest(
        tmp_path / "out",
        SHARDS,
        "random",
        seed=4,
        speeds=[1, 2, 3],
        num_samples=9,
        settings={"a": 1},
        source_name="x.npz",
        source_sha256="ab",
    )
    for where in (path, path.parent):
        manifest = load_manifest(where)
        assert manifest.num_workers == 3
        assert [manifest.indices(rank).tolist() for rank in range(3)] == [[0, 3], [1], []]
        assert (manifest.strategy, manifest.seed, manifest.speeds) == ("random", 4, (1.0, 2.0, 3.0))
        assert (manifest.source_name, manifest.source_sha256) == ("x.npz", "ab")
        assert manifest.num_samples == 9
    with pytest.raises(ConfigError, match="rank must be 0 to 2, got 3"):
        manifest.indices(3)


def test_the_same_arguments_write_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_manifest(tmp_path / name, SHARDS, "random")
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()


def test_a_changed_shard_is_named(tmp_path: Path) -> None:
    path = save_manifest(tmp_path / "out", SHARDS, "random")
    file = tmp_path / "out" / "shard-00001.npy"
    np.save(file, np.array([2]))
    with pytest.raises(DataError, match=r"shard-00001\.npy was changed"):
        load_manifest(path)
    file.unlink()
    with pytest.raises(DataError, match=r"shard-00001\.npy is missing"):
        load_manifest(path)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"format": "other"}, "no manifest of shards"),
        ({"version": 99}, "version 99"),
        ({"num_samples": 2}, "ascending indices below 2"),
        ({"source": {}}, "name"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(tmp_path: Path, edit: dict, message: str) -> None:
    path = save_manifest(tmp_path / "out", SHARDS, "random")
    path.write_text(json.dumps(json.loads(path.read_text()) | edit))
    with pytest.raises(DataError, match=message):
        load_manifest(path)


def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path) -> None:
    path = save_manifest(tmp_path / "out", SHARDS, "random")
    content = json.loads(path.read_text())
    content["shards"][0]["file"] = "../../etc/passwd"
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="not in its folder"):
        load_manifest(path)


def test_a_manifest_that_is_missing_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="freewheel shard"):
        load_manifest(tmp_path / "nowhere.json")
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as a manifest"):
        load_manifest(tmp_path)


def test_a_manifest_knows_its_source(tmp_path: Path) -> None:
    manifest = load_manifest(save_manifest(tmp_path / "o", SHARDS, "random", source_sha256="aa"))
    manifest.check_source(4, "aa")
    with pytest.raises(DataError, match="but the data has 5"):
        manifest.check_source(5)
    with pytest.raises(DataError, match="the data was changed"):
        manifest.check_source(4, "bb")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    save_manifest(tmp_path / "out", SHARDS, "random")
    before = (tmp_path / "out" / "manifest.json").read_bytes()

    def write_half() -> None:
        with written_aside(tmp_path / "out", True) as aside:
            (aside / "half").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "manifest.json").read_bytes() == before


def test_what_is_no_folder_of_shards_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match="not empty"):
        save_manifest(tmp_path / "mine", SHARDS, "random")
    with pytest.raises(ConfigError, match="no folder of shards"):
        save_manifest(tmp_path / "mine", SHARDS, "random", overwrite=True)
    with pytest.raises(ConfigError, match="is a file"):
        save_manifest(tmp_path / "mine" / "thesis.tex", SHARDS, "random", overwrite=True)


@pytest.mark.parametrize("loader_workers", [0, 2])
def test_the_order_does_not_depend_on_loader_workers(loader_workers: int) -> None:
    data = TensorDataset(torch.arange(40))
    shard = assign(np.zeros((40, 1)), None, "random", workers=4)[2]
    sampler = ShardSampler(shard, seed=3, rank=2)
    seen = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        loader = DataLoader(data, batch_size=3, sampler=sampler, num_workers=loader_workers)
        seen.append(torch.cat([batch for (batch,) in loader]).tolist())
        expected = np.random.default_rng((3, 2, epoch)).permutation(shard).tolist()
        assert seen[-1] == expected
    assert seen[0] != seen[1]


def test_a_sampler_without_shuffling_and_from_a_manifest(tmp_path: Path) -> None:
    manifest = load_manifest(save_manifest(tmp_path / "out", SHARDS, "random"))
    assert list(ShardSampler.from_manifest(manifest, 0, shuffle=False)) == [0, 3]
    assert len(ShardSampler.from_manifest(manifest, 2)) == 0
    with pytest.raises(ConfigError, match="without repeats"):
        ShardSampler([1, 1])


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_is_read_in_batches(tmp_path: Path, compressed: bool) -> None:
    file = tmp_path / "d.npz"
    features = np.arange(30, dtype=np.float32).reshape(5, 3, 2)
    save = np.savez_compressed if compressed else np.savez
    save(file, x=features, y=np.array([0, 1, 0, 1, 1]), other=np.zeros(2))
    source = open_source(file, tmp_path)
    assert [len(batch) for batch in source.features.batches(2)] == [2, 2, 1]
    np.testing.assert_array_equal(np.concatenate([*source.features.batches(2)]), features)
    assert source.labels.tolist() == [0, 1, 0, 1, 1]
    with pytest.raises(DataError, match="no array 'z'"):
        open_source(file, tmp_path, features="z")


def test_npy_in_either_order(tmp_path: Path) -> None:
    features = np.arange(12.0).reshape(4, 3)
    np.save(tmp_path / "c.npy", features)
    np.save(tmp_path / "f.npy", np.asfortranarray(features))
    np.save(tmp_path / "y.npy", np.array([1, 2, 3, 4]))
    for name in ("c.npy", "f.npy"):
        assert rows_of(tmp_path / name, tmp_path) == features.tolist()
    source = open_source(tmp_path / "c.npy", tmp_path, labels=str(tmp_path / "y.npy"))
    assert source.labels.tolist() == [1, 2, 3, 4]


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)
    with pytest.raises(DataError, match="could run code"):
        open_source(tmp_path / "d.npz", tmp_path)


@pytest.mark.parametrize("packed", [False, True])
def test_idx_finds_its_labels(tmp_path: Path, packed: bool) -> None:
    suffix = ".gz" if packed else ""
    opener = gzip.open if packed else open
    with opener(tmp_path / f"train-images-idx3-ubyte{suffix}", "wb") as file:
        file.write(bytes([0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6]))
    with opener(tmp_path / f"train-labels-idx1-ubyte{suffix}", "wb") as file:
        file.write(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]))
    path = tmp_path / f"train-images-idx3-ubyte{suffix}"
    source = open_source(path, tmp_path)
    assert source.labels.tolist() == [7, 8, 9]
    assert rows_of(path, tmp_path) == [[[1, 2]], [[3, 4]], [[5, 6]]]


def test_big_endian_idx(tmp_path: Path) -> None:
    path = tmp_path / "a-idx"
    path.write_bytes(bytes([0, 0, 11, 1, 0, 0, 0, 2, 1, 0, 255, 255]))
    assert rows_of(path, tmp_path) == [256, -1]


def test_files_that_were_cut_short_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((9, 4)))
    whole = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(whole[:-40])
    with pytest.raises(DataError, match=r"a\.npy ends after 7 of 9 samples"):
        rows_of(tmp_path / "a.npy", tmp_path)
    whole = gzip.compress(bytes([0, 0, 8, 1, 0, 0, 0, 200]) + bytes(range(200)))
    for cut in (100, 1):  # within the data; within the checksum behind it
        (tmp_path / "b-idx.gz").write_bytes(whole[:-cut])
        with pytest.raises(DataError, match=r"b-idx\.gz"):
            rows_of(tmp_path / "b-idx.gz", tmp_path)
    (tmp_path / "c.npz").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"c\.npz cannot be read"):
        open_source(tmp_path / "c.npz", tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "x,note,label\n1,a,cat\n2,b,dog\n",
        "x,note,label\r\n1,a,cat\r\n2,b,dog\r\n",
        "\ufeffx,note,label\n1,a,cat\n2,b,dog",
        'x,note,label\n1,"a\nb",cat\n\n2,"c,d",dog\n',
    ],
    ids=["plain", "crlf", "bom, no last newline", "quoted newline, blank line"],
)
def test_scenario_7_csv_of_every_kind_gives_the_same_rows(tmp_path: Path, text: str) -> None:
    (tmp_path / "d.csv").write_bytes(text.encode())
    source = open_source(tmp_path / "d.csv", tmp_path, features="x")
    assert np.concatenate([*source.features.batches(9)]).tolist() == [[1.0], [2.0]]
    assert source.labels.tolist() == ["cat", "dog"]


def test_csv_without_a_header_and_with_numbers_as_labels(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("1,2,0\n3,4,1\n")
    source = open_source(tmp_path / "d.csv", tmp_path, labels="2")
    assert np.concatenate([*source.features.batches(9)]).tolist() == [[1, 2], [3, 4]]
    assert source.labels.dtype == np.int64
    (tmp_path / "e.csv").write_text("a,y\n1,0.5\n2,1.25\n")
    assert open_source(tmp_path / "e.csv", tmp_path).labels.tolist() == [0.5, 1.25]


def test_csv_labels_that_are_not_all_numbers_are_texts(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,y\n1,01\n2,1\n3,x\n")
    assert open_source(tmp_path / "d.csv", tmp_path).labels.tolist() == ["01", "1", "x"]


def test_csv_with_very_many_different_numbers_as_labels(tmp_path: Path) -> None:
    rows = "".join(f"1,{value}\n" for value in range(70_000))
    (tmp_path / "d.csv").write_text("a,y\n" + rows)
    found = open_source(tmp_path / "d.csv", tmp_path).labels
    np.testing.assert_array_equal(found, np.arange(70_000))
    (tmp_path / "d.csv").write_text("a,y\n" + rows + "1,x\n")
    with pytest.raises(DataError, match="line 70002: label 'x' is not a number"):
        open_source(tmp_path / "d.csv", tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3\n", "line 3: 1 fields, but the first row has 2"),
        ('a,b\n"1\n",2\n3,4,5\n', "line 4: 3 fields"),
        ("a,b\n1,x\n", "line 2, column 'b': 'x' is not a number"),
        ("a,b\n1,2\n3,\n", "line 3, column 'b': '' is not a number"),
        ('a,b\n1,2\n3,"4\n', "line 3: .*quote"),
        ("a,b\n", "no rows"),
        ("", "is empty"),
        ("a,a\n1,2\n", "same name"),
    ],
)
def test_broken_rows_are_named_by_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "d.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        open_source(tmp_path / "d.csv", tmp_path)


def test_csv_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_bytes(b"a,b\n1,\xff\n")
    with pytest.raises(DataError, match="not UTF-8"):
        open_source(tmp_path / "d.csv", tmp_path)


def test_nan_in_csv_is_named_by_sample(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text("a,b\n1,2\n3,nan\n")
    samples = open_source(tmp_path / "d.csv", tmp_path).samples()
    with pytest.raises(DataError, match="feature 1 of sample 1 is nan"):
        list(samples.batches())


def test_parquet_across_row_groups(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table(
        {"a": list(range(10)), "b": [0.5] * 10, "s": ["z"] * 10, "label": ["u", "v"] * 5}
    )
    pq.write_table(table, tmp_path / "d.parquet", row_group_size=3)
    source = open_source(tmp_path / "d.parquet", tmp_path)
    assert source.columns == ("a", "b")
    assert [len(batch) for batch in source.features.batches(4)] == [4, 4, 2]
    assert np.concatenate([*source.features.batches(4)])[:, 0].tolist() == list(range(10))
    assert source.labels.tolist() == ["u", "v"] * 5
    with pytest.raises(DataError, match="column 's' has type string"):
        open_source(tmp_path / "d.parquet", tmp_path, features="s")
    (tmp_path / "e.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        open_source(tmp_path / "e.parquet", tmp_path)


def test_a_folder_of_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "pets"
    for name, grey in (("cat/1.png", 0), ("cat/2.png", 100), ("dog/1.png", 200)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("L", (9, 7), grey).save(folder / name)
    (folder / "cat" / ".hidden.png").write_bytes(b"")
    (folder / "notes.txt").write_text("x")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    source = open_source(folder, scratch, image_size=4)
    rows = np.concatenate([*source.features.batches(2)])
    assert rows.shape == (3, 3, 4, 4)
    assert rows[:, 0, 0, 0].tolist() == [0, 100, 200]
    assert source.labels.tolist() == ["cat", "cat", "dog"]
    (folder / "dog" / "2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"2\.png cannot be read as an image"):
        open_source(folder, scratch)


def test_unknown_kinds_and_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "d.xyz").write_text("x")
    with pytest.raises(DataError, match="of no known kind"):
        open_source(tmp_path / "d.xyz", tmp_path)
    with pytest.raises(DataError, match="no file or folder"):
        open_source(tmp_path / "none.csv", tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no image"):
        open_source(tmp_path / "empty", tmp_path)
    with pytest.raises(ConfigError, match="--features has no meaning"):
        open_source(tmp_path / "empty", tmp_path, features="a")
