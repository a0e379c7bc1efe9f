"""What the death of a worker or a server does: real processes, real signals."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cli import freewheel, run_folder, sets
from freewheel.observe.run_folder import read_rows


def write(tmp_path: Path, role: str, rank: int, at: int) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
[data]
factory = "factories:small_data"
num_samples = 48
batch_size = 4
[model]
factory = "dying:model"
role = "{role}"
rank = {rank}
at = {at}
[train]
steps = 20
[layout]
kind = "server"
workers = 3
[run]
dir = "{tmp_path / "runs"}"
""",
        encoding="utf-8",
    )
    return path


def test_scenario_14_a_worker_that_dies_stops_nobody(tmp_path: Path) -> None:
    path = write(tmp_path, "worker", 1, 7)
    done = freewheel("train", str(path), "--json", *sets(layout__servers=2, protocol__name="asp"))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["died"] == ["worker 1"]
    clocks = {rank: notes["clock"] for rank, notes in summary["workers"].items()}
    assert clocks["0"] == clocks["2"] == 20
    assert clocks["1"] == 6, "it died in the forward of step 7"
    events = read_rows(run_folder(tmp_path / "runs") / "events.jsonl")
    (death,) = [event for event in events if event["event"] == "died"]
    assert (death["process"], death["code"]) == ("worker 1", -9)
    assert "worker 1" in done.stderr
    assert "going on without it" in done.stderr


def test_scenario_14_or_ends_the_run_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, "worker", 1, 7)
    done = freewheel("train", str(path), *sets(layout__on_worker_death="end"))
    assert done.returncode == 6
    assert re.search(r"worker 1 \(pid \d+\) died \(signal 9\) at step \d", done.stderr)


def test_a_server_that_dies_ends_the_run_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, "server", 0, 2)
    done = freewheel("train", str(path), *sets(eval__every=2))
    assert done.returncode == 6
    assert "server 0 (pid" in done.stderr
    assert "died (signal 9)" in done.stderr


def test_when_all_workers_die_the_run_ends_with_an_error(tmp_path: Path) -> None:
    path = write(tmp_path, "worker", -1, 3)
    done = freewheel("train", str(path), *sets(protocol__name="asp", layout__workers=2))
    assert done.returncode == 6
    assert "died (signal 9)" in done.stderr


def test_scenario_16_all_workers_raise_and_the_first_error_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
[data]
factory = "factories:small_data"
batch_size = 4
[model]
factory = "factories:failing_model"
how = "raise"
at = 3
[layout]
kind = "server"
[run]
dir = "{tmp_path / "runs"}"
""",
        encoding="utf-8",
    )
    done = freewheel("train", str(path), *sets(layout__workers=2, protocol__name="asp"))
    assert done.returncode == 6
    assert "this layer has had enough" in done.stderr
