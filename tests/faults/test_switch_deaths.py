"""A worker that dies in the hand-over from all-reduce to servers: real processes, real SIGKILL."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cli import freewheel, run_folder, sets
from freewheel.runtime.checkpoints.checkpoint import latest


def write(tmp_path: Path, phase: str, rank: int) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(
        f"""
[data]
factory = "factories:small_data"
num_samples = 48
batch_size = 4
[model]
factory = "killed_switch:model"
phase = "{phase}"
rank = {rank}
once = "{tmp_path / "killed"}"
[optimizer]
name = "sgd"
momentum = 0.9
[train]
steps = 12
[layout]
kind = "replicas"
workers = 3
[protocol]
name = "strategy_switch"
then = "bsp"
[protocol.criterion]
name = "maximum"
clock = 5
[checkpoint]
every = 2
[run]
dir = "{tmp_path / "runs"}"
""",
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize(("phase", "rank", "saved_at"), [("saving", 2, 4), ("saved", 1, 5)])
def test_the_run_ends_with_its_name_and_a_checkpoint_from_which_it_goes_on(
    phase: str, rank: int, saved_at: int, tmp_path: Path
) -> None:
    done = freewheel("train", str(write(tmp_path, phase, rank)))
    check_ended(done, rank, saved_at, tmp_path)


@pytest.mark.parametrize("rank", [0, 2])
def test_after_its_word_the_run_goes_on_or_ends_with_a_checkpoint(
    rank: int, tmp_path: Path
) -> None:
    """Servers may have all that they need by then; not where server 0 was in the same process."""
    done = freewheel("train", str(write(tmp_path, "ready", rank)), "--json")
    if done.returncode == 0 and rank != 0:
        summary = json.loads(done.stdout)
        assert (summary["died"], summary["switched_at"]) == ([f"worker {rank}"], 5)
        return
    check_ended(done, rank, 5, tmp_path)


def check_ended(done: Any, rank: int, saved_at: int, tmp_path: Path) -> None:
    assert done.returncode == 6, done.stderr
    assert re.search(rf"worker {rank} \(pid \d+\) died \(signal 9\) at step \d", done.stderr)
    folder = run_folder(tmp_path / "runs")
    assert latest(folder / "checkpoints").step == saved_at
    assert json.loads((folder / "summary.json").read_text())["status"] == "failed"
    again = freewheel("resume", str(folder), "--json")
    assert again.returncode == 0, again.stderr
    summary = json.loads(again.stdout)
    assert (summary["status"], summary["switched_at"]) == ("ok", 5)
    assert summary["steps"] == 12
    assert summary["died"] == []


def test_once_all_hold_the_same_the_others_go_on_without_it(tmp_path: Path) -> None:
    done = freewheel("train", str(write(tmp_path, "serving", 2)), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["died"], summary["switched_at"]) == (["worker 2"], 5)


def test_on_death_restart_goes_on_by_itself(tmp_path: Path) -> None:
    path = write(tmp_path, "saved", 1)
    done = freewheel("train", str(path), "--json", *sets(run__on_death="restart"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["switched_at"] == 5
