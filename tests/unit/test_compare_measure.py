"""From run folders to units: numbers worked out by hand, and lines that a kill cut short."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from freewheel.compare.measure import measure, step_seconds, typical_step_s
from freewheel.compare.units import Unit, Units, key_of
from freewheel.config import parse_config

START_S = 9.0


def row(process: str, step: int, compute: float, wait: float, sent: int, **more: Any) -> dict:
    return {
        "process": process,
        "step": step,
        "compute_s": compute,
        "wait_s": wait,
        "send_s": 0.25,
        "bytes_sent": sent,
        "messages_sent": 2,
        **more,
    }


def run_folder(path: Path, rows: Sequence[dict], events: Sequence[dict] = ()) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    (path / "summary.json").write_text(json.dumps({"final_metrics": {"accuracy": 0.75}}))
    return path


def test_a_run_is_measured_by_its_records(tmp_path: Path) -> None:
    rows = []
    for step in (1, 2, 3, 4):
        rows.append(row("stage 0", step, 1.0, START_S if step == 1 else 0.75, 100))
        rows.append(row("stage 1", step, 0.5, 0.25, 60))
    events = [
        {"event": "joined", "process": "stage 0"},
        {"event": "evaluated", "step": 2, "metrics": {"accuracy": 0.5, "loss": 1.0}},
        {"event": "evaluated", "step": 4, "metrics": {"accuracy": 0.75}},
    ]
    found = measure(run_folder(tmp_path / "r", rows, events), "accuracy")
    assert found["metric"] == 0.75
    assert found["bytes"] == 4 * 160
    assert found["messages"] == 16
    assert found["steps"] == 4
    assert found["wall_s"] == 4 * 2.0  # the start of the first step is not training
    assert found["free_s"] == 4 * 1.0
    assert found["compute_s"] == {"stage 0": 4.0, "stage 1": 2.0}
    assert found["updates"] == {"stage 0": 4, "stage 1": 4}
    assert found["curve"] == [[2, 0.5, 320, 4.0], [4, 0.75, 640, 8.0]]


def test_steps_without_messages_are_in_the_record_after_them(tmp_path: Path) -> None:
    steps = [1, 2, 6, 7, 11]
    rows = [
        row(process, step, 1.0, 0.25, 10, updates=2 if step == 6 else 1)
        for process in ("stage 0", "stage 1")
        for step in steps
    ]
    events = [
        {"event": "alone", "step": 2, "steps": 3, "round": "replay"},
        {"event": "alone", "step": 7, "steps": 3, "round": "coast"},
        {"event": "evaluated", "step": 6, "metrics": {"accuracy": 0.5}},
    ]
    found = measure(run_folder(tmp_path / "r", rows, events), "accuracy")
    assert found["kinds"] == {"sync": 3, "after replay": 1, "after coast": 1}
    assert found["alone"] == {"replay": 3, "coast": 3}
    assert found["updates"] == {"stage 0": 6, "stage 1": 6}
    assert found["steps"] == 11
    assert found["curve"] == [[6, 0.5, 3 * 20, 3 * 1.5]]


def test_seconds_of_a_step_are_those_of_the_slowest_process(tmp_path: Path) -> None:
    rows, step = [], 0
    for number in range(1, 16):
        step += 1 if number % 2 else 4
        compute = 1.0 if number % 2 else 3.0
        slow_start = 5.0 if number <= 5 else 0.0  # the warm-up is left out
        rows.append(row("stage 0", step, compute + slow_start, 0.5, 0))
        rows.append(row("stage 1", step, 0.125, 0.0, 0))
    alone = [
        {"event": "alone", "step": r["step"], "steps": 3, "round": "replay"}
        for r in rows[::4]  # of stage 0, before every second record
    ]
    folder = run_folder(tmp_path / "r", rows, alone)
    assert step_seconds(folder) == {
        "after replay": {"wall_s": 3.75, "free_s": 3.0},
        "sync": {"wall_s": 1.75, "free_s": 1.0},
    }
    assert typical_step_s(folder) == pytest.approx((1.75 + 3.75) / 2)


def test_a_run_that_failed_is_measured_as_far_as_it_came(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "r", [row("stage 0", 1, 1.0, 0.0, 70)])
    (folder / "summary.json").write_text(json.dumps({"status": "failed"}))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"process": "stage 0", "st')
    found = measure(folder, "accuracy")
    assert (found["metric"], found["bytes"], found["steps"]) == (None, 70, 1)
    (tmp_path / "e").mkdir()
    nothing = measure(run_folder(tmp_path / "e", []), "accuracy")
    assert (nothing["bytes"], nothing["wall_s"], nothing["curve"]) == (0, 0.0, [])


def test_done_units_are_found_again(tmp_path: Path) -> None:
    path = tmp_path / "units.jsonl"
    ok = Unit("k1", "a", "train", 0, "ok", measured={"metric": 0.5})
    crashed = Unit("k2", "a", "train", 1, "crashed", "stage 1 died")
    stopped = Unit("k3", "a", "train", 2, "interrupted")
    units = Units(path)
    for unit in (ok, crashed, stopped):
        units.put(unit)
    with path.open("a") as file:
        file.write('{"key": "k4", "arm": "a", "wh')  # killed while writing
    again = Units(path)
    assert again.done("k1") == ok
    assert again.done("k2") == crashed
    assert again.done("k3") is None
    assert again.done("k4") is None
    assert Units(path, retry_failed=True).done("k2") is None
    again.put(Unit("k4", "a", "train", 3, "ok"))
    assert Units(path).done("k4") is not None


def test_a_key_stands_for_what_is_run_and_not_for_where() -> None:
    def key(**run: Any) -> str:
        return key_of(parse_config({"run": run, "train": {"steps": 5}}))

    assert key(dir="a", name="x") == key(dir="b", name="y")
    assert key(seed=1) != key(seed=2)
    assert key() != key_of(parse_config({"train": {"steps": 6}}))
