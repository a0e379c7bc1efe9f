"""What the death of a worker or a server does: real processes, real signals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli import freewheel, run_folder, sets
from freewheel.config import parse_config
from freewheel.errors import WorkerError
from freewheel.launch.local import Exit
from freewheel.observe.board import Board
from freewheel.observe.progress import Progress
from freewheel.observe.run_folder import RunFolder, read_rows
from freewheel.runtime.coordinator import Coordinator
from freewheel.transport.base import COORDINATOR, Message
from freewheel.transport.inproc import InprocHub


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


class Ended:
    """Two workers that end with an error, the second one after the run has been told to stop."""

    def __init__(self) -> None:
        self.looks = 0

    def pids(self) -> dict[str, int]:
        return {"server 0": 1, "worker 0": 2, "worker 1": 3}

    def alive(self) -> list[str]:
        return []

    def exits(self) -> list[Exit]:
        self.looks += 1
        return {1: [Exit("worker 0", 2, 1)], 2: [Exit("worker 1", 3, 1)]}.get(self.looks, [])

    def stop(self, grace_s: float = 3.0) -> None:
        """None is left."""


def test_scenario_16_nobody_waits_for_a_server_that_has_ended_with_the_rest(tmp_path: Path) -> None:
    config = parse_config({"layout": {"kind": "server", "workers": 2}, "protocol": {"name": "asp"}})
    hub, names = InprocHub(), ["server 0", "worker 0", "worker 1"]
    link = hub.link(COORDINATOR)
    others = {name: hub.link(name) for name in names}
    for other in others.values():
        other.connect({COORDINATOR: link.address})
        other.send(COORDINATOR, Message("hello", meta={"address": other.address, "pid": 1}))
    folder = RunFolder(tmp_path / "run", config)
    board, processes = Board(3, names), Ended()
    leader = Coordinator(link, names, processes, folder, board, Progress(quiet=True), config)
    processes.looks = -(10**6)  # all live while they join
    leader.gather()
    processes.looks = 0
    others["server 0"].close()
    said = {"error": "RuntimeError: enough", "kind": "", "traceback": "enough", "pid": 2}
    for name in ("worker 0", "worker 1"):
        others[name].send(COORDINATOR, Message("failed", meta=said))
    with pytest.raises(WorkerError, match=r"worker 0 .* failed: RuntimeError: enough"):
        leader.lead()
    assert processes.looks >= 2
    folder.close()
    for each in (link, *others.values()):
        each.close()
