"""``freewheel simulate``: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from freewheel.cli.simulate import simulate
from freewheel.config import load_config
from freewheel.errors import ConfigError
from freewheel.protocols.arrivals import from_row
from freewheel.protocols.replicas import Pushed
from freewheel.runtime.checkpoints.final import load_final

TOML = """
[run]
dir = "{dir}"
[data]
name = "synthetic"
batch_size = 8
[model]
name = "mlp"
hidden = [8]
[optimizer]
name = "sgd"
lr = 0.1
[train]
steps = 6
[eval]
every = 3
[layout]
kind = "server"
workers = 2
[protocol]
name = "asp"
"""

app = typer.Typer()
app.command()(simulate)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "simulate.toml"
    path.write_text(TOML.format(dir=tmp_path / "runs"))
    return path


def call(file: Path, *options: str) -> dict[str, Any]:
    done = CliRunner().invoke(app, [str(file), "--json", *options])
    if done.exception is not None:
        raise done.exception
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def rows(summary: dict[str, Any], name: str) -> list[dict[str, Any]]:
    text = (Path(summary["run"]) / name).read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_writes_a_run_folder_like_train(file: Path) -> None:
    summary = call(file, "--workers", "4", "--stragglers", "1x4", "--link", "100mbit,5ms")
    assert summary["status"] == "ok"
    assert summary["time"] == "virtual"
    assert summary["wall_s"] is None
    assert summary["virtual_s"] > 0
    assert summary["workers"] == 4
    assert summary["local_steps"] == 24
    assert summary["updates"] == summary["pushes_folded"] == 24
    assert 0 < summary["final_accuracy"] <= 1
    steps = rows(summary, "metrics.jsonl")
    assert len(steps) == 24
    assert sum(row["samples"] for row in steps) == summary["samples"]
    assert [row["virtual_s"] for row in steps] == sorted(row["virtual_s"] for row in steps)
    by_process = Counter(row["process"] for row in steps)
    assert by_process["worker 3"] < by_process["worker 0"]
    events = rows(summary, "events.jsonl")
    assert [e["step"] for e in events if e["event"] == "evaluated"] == [3, 6, 6]
    arrivals = [from_row(row) for row in rows(summary, "arrivals.jsonl")]
    assert sum(isinstance(event, Pushed) for event in arrivals) == 24
    assert "head.weight" in load_final(Path(summary["run"]))
    again = load_config(Path(summary["run"]) / "config.toml")
    assert again.layout.workers == 4
    # Bytes of workers are counted per step; the server's replies and goodbyes come on top.
    assert 0 < sum(row["bytes_sent"] for row in steps) < summary["bytes_sent"]


def test_the_same_command_gives_the_same_numbers(file: Path) -> None:
    options = ("--stragglers", "1x4", "--transient", "0.2x5", "--jitter", "0.3")
    first, second = call(file, *options), call(file, *options)
    for key in ("run", "total_s"):
        first.pop(key), second.pop(key)
    assert first == second
    assert call(file, *options, "--set", "run.seed=1")["virtual_s"] != first["virtual_s"]


def test_each_worker_its_own_steps(file: Path) -> None:
    shared = call(file, "--stragglers", "1x4", "--jitter", "0")
    each = call(file, "--stragglers", "1x4", "--jitter", "0", "--each")
    assert each["virtual_s"] == pytest.approx(6 * 0.040)
    assert shared["virtual_s"] < each["virtual_s"]


def test_cost_only_takes_the_same_time_without_gradients(file: Path) -> None:
    options = ("--stragglers", "1x4", "--link", "1mbit,5ms", "--step-ms", "3", "--server-ms", "1")
    real, cost = call(file, *options), call(file, *options, "--cost-only")
    assert cost["virtual_s"] == real["virtual_s"]
    assert cost["bytes_sent"] == real["bytes_sent"]
    assert cost["final_accuracy"] is None


def test_deaths_and_joins(file: Path) -> None:
    summary = call(file, "--death", "0@0.035", "--join", "2@0.02", "--detect-ms", "10")
    events = rows(summary, "events.jsonl")
    assert {"died", "joined", "left"} <= {event["event"] for event in events}
    assert any(row["process"] == "worker 2" for row in rows(summary, "metrics.jsonl"))


def test_all_reduce_and_the_link_of_the_file(file: Path) -> None:
    summary = call(
        file,
        *("--set", "layout.kind=replicas", "--set", "protocol.name=all_reduce"),
        *("--set", "link.delay_ms=50", "--jitter", "0"),
    )
    # Two workers: 2 exchanges of one delay each, and 10 ms of work, 6 times.
    assert summary["virtual_s"] == pytest.approx(6 * (0.010 + 2 * 0.050))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--workers", "0"), "greater than or equal to 1"),
        (("--link=-5mbit",), "link rate must be > 0 Mbit/s, got -5.0"),
        (("--stragglers", "many"), "COUNTxFACTOR"),
        (("--stragglers", "3x2"), "3 stragglers but 2 workers"),
        (("--step-ms=-1",), "step time must be >= 0"),
        (("--set", "layout.kind=pipeline"), "protocol 'asp' is for layout.kind = 'server'"),
        (("--set", "layout.kind=replicas"), "protocol 'asp' runs in layout 'server'"),
        (("--set", "codec.push=int8"), "unknown codec 'int8'"),
        (("--set", "protocol.name=ssp", "--set", "protocol.staleness=-1"), 'use protocol = "asp"'),
        (("--set", "train.autocast=bf16"), "train.autocast = 'bf16' is not simulated"),
    ],
)
def test_bad_input(file: Path, options: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        call(file, *options)
