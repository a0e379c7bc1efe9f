"""``train`` takes the manifest of shards: each worker its own samples, once an epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import factories
import freewheel
from cli import freewheel as command
from freewheel.config import parse_config
from freewheel.errors import EXIT_DATA, ConfigError
from freewheel.launch.resolve import resolve
from freewheel.observe.run_folder import read_rows
from freewheel.runtime.pieces import Given
from freewheel.sharding import load_manifest, save_manifest
from freewheel.streams import load


def shards_of(folder: Path) -> str:
    # uneven on purpose: 25 and 15 of the 40 samples
    save_manifest(folder / "shards", [np.arange(25), np.arange(25, 40)], "contiguous")
    return str(folder / "shards")


def test_each_worker_takes_its_own_shard(tmp_path: Path) -> None:
    result = freewheel.train(
        factories.small_model,
        quiet=True,
        data={
            "factory": "factories:small_data",
            "batch_size": 8,
            "shards": shards_of(tmp_path),
        },
        layout={"kind": "replicas", "workers": 2},
        train={"epochs": 2},
        run={"dir": str(tmp_path / "runs")},
    )
    rows = read_rows(result.run_dir / "metrics.jsonl")
    taken = {
        name: sum(row["samples"] for row in rows if row["process"] == name)
        for name in ("replica 0", "replica 1")
    }
    assert taken == {"replica 0": 2 * 25, "replica 1": 2 * 15}
    assert result.summary["steps"] == 2 * 4  # the larger shard needs 4 batches of 8


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        ({"kind": "replicas", "workers": 3}, "made for 2 workers"),
        ({"kind": "pipeline"}, "a pipeline takes them all"),
    ],
)
def test_shards_that_do_not_fit_are_refused(
    tmp_path: Path, layout: dict[str, object], text: str
) -> None:
    config = parse_config({"data": {"shards": shards_of(tmp_path)}, "layout": layout})
    given = Given(factories.small_model, factories.small_data)
    with pytest.raises(ConfigError, match=text):
        resolve(config, given, ())


def test_shards_of_a_run_file_fit_the_run(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(
        '[data]\nname = "digits"\n[model]\nname = "mlp"\n[layout]\nkind = "replicas"\nworkers = 2\n'
        f'[train]\nsteps = 3\n[run]\ndir = "{tmp_path}/runs"\n'
    )
    shards = tmp_path / "shards"
    made = command("shard", str(file), "--workers", "2", "--out", str(shards), "--json")
    assert made.returncode == 0, made.stderr
    manifest = load_manifest(shards)
    train = load("digits").train
    both = np.sort(np.concatenate([manifest.indices(rank) for rank in range(2)]))
    np.testing.assert_array_equal(both, np.arange(len(train)))
    by_name = command("shard", "digits", "--workers", "2", "--out", str(tmp_path / "named"))
    assert by_name.returncode == 0, by_name.stderr
    np.testing.assert_array_equal(load_manifest(tmp_path / "named").indices(1), manifest.indices(1))
    trained = command("train", str(file), "--set", f"data.shards={shards}", "--json")
    assert trained.returncode == 0, trained.stderr


def test_a_name_that_is_nothing_is_refused(tmp_path: Path) -> None:
    done = command("shard", "nosuch", "--workers", "2", "--out", str(tmp_path / "out"))
    assert done.returncode == EXIT_DATA
    assert "no file or folder 'nosuch', and no data set of that name" in done.stderr
