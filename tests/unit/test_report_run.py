"""A run folder is opened whatever state it is in; what is no run folder is refused."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import report_runs
from freewheel.errors import ConfigError
from freewheel.observe.report import open_run, open_runs
from freewheel.observe.report.columns import read_columns


def test_columns_hold_what_the_rows_say(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    report_runs.write_lines(
        path,
        [
            report_runs.row("stage 10", 1, loss=2.0),
            report_runs.row("stage 2", 1, wait_for="stage 10", metrics={"accuracy": 0.5}),
        ],
    )
    columns = read_columns(path)
    assert columns.processes == ["stage 2", "stage 10"]
    assert columns.process.tolist() == [1, 0]
    np.testing.assert_array_equal(columns["loss"], [2.0, math.nan])
    np.testing.assert_array_equal(columns.metrics["accuracy"], [math.nan, 0.5])
    assert [columns.peers[i] if i >= 0 else None for i in columns.wait_for] == [None, "stage 10"]


@pytest.mark.parametrize(
    "line",
    [
        b'{"process": "stage 0", "st',
        b'{"process": "stage 0", "step": 2, "x": "\xff\xfe"}',
        b"[1, 2]",
        b'{"step": 2}',
        b'{"process": "stage 0"}',
        b'{"process": 3, "step": 2}',
        b"\0\0\0\0",
    ],
)
def test_a_line_that_is_no_record_is_left_out_and_told(tmp_path: Path, line: bytes) -> None:
    run = report_runs.make_run(tmp_path / "run", report_runs.stage_rows(1, 1))
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(line)
    opened = open_run(run)
    assert len(opened.rows) == 1
    assert opened.notes == [
        "metrics.jsonl holds 1 line that is no record (half written, or damaged); left out"
    ]


def test_a_value_of_the_wrong_type_is_missing(tmp_path: Path) -> None:
    rows = [
        report_runs.row("stage 0", 1, loss="low", lr=10**400, metrics=[1], wait_for=3, wait_s=None)
    ]
    opened = open_run(report_runs.make_run(tmp_path / "run", rows))
    assert np.isnan([opened.rows[key][0] for key in ("loss", "lr", "wait_s")]).all()
    assert opened.rows.metrics == {}
    assert opened.rows.wait_for.tolist() == [-1]


@pytest.mark.parametrize("empty", [True, False])
def test_without_steps_it_opens_empty(tmp_path: Path, empty: bool) -> None:
    run = report_runs.make_run(tmp_path / "run")
    if not empty:
        (run / "metrics.jsonl").unlink()
        (run / "events.jsonl").unlink()
    opened = open_run(run)
    assert (len(opened.rows), opened.events, opened.status) == (0, [], "unfinished")
    assert opened.notes == ["metrics.jsonl holds no step"]
    assert opened.end_s == 0


def test_settings_and_summary_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    run = report_runs.pipeline(tmp_path / "run")
    (run / "config.toml").write_text("[run\n")
    (run / "summary.json").write_text('{"status": "o')
    opened = open_run(run)
    assert opened.config == {}
    assert opened.status == "unfinished"
    assert [note.split(" cannot")[0] for note in opened.notes] == ["config.toml", "summary.json"]


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no run folder .*gone.*; give a folder that freewheel"):
        open_run(tmp_path / "gone")


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    run = report_runs.pipeline(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"is a file, not a run folder; give the folder"):
        open_run(run / "summary.json")


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"neither config.toml nor metrics.jsonl"):
        open_run(tmp_path)


def test_a_folder_of_runs_names_them(tmp_path: Path) -> None:
    for name in "dbca":
        report_runs.unfinished(tmp_path / name)
    with pytest.raises(ConfigError, match=r"but holds 4: a, b, c \.\.\.; .*/\*"):
        open_run(tmp_path)


def test_labels_are_short_and_differ(tmp_path: Path) -> None:
    one = report_runs.pipeline(tmp_path / "one", name="same")
    other = report_runs.pipeline(tmp_path / "other", name="same")
    copy = report_runs.pipeline(tmp_path / "x" / "one", name="same")
    assert [run.label for run in open_runs([one])] == ["same"]
    assert [run.label for run in open_runs([one, other])] == ["one", "other"]
    assert [run.label for run in open_runs([one, copy])] == ["one", "one (2)"]
    assert len(open_runs([one, one])) == 1


def test_status_and_error(tmp_path: Path) -> None:
    broken = open_run(report_runs.failed(tmp_path / "failed", error="out of memory"))
    killed = open_run(report_runs.unfinished(tmp_path / "killed"))
    assert (broken.status, broken.error) == ("failed", "out of memory")
    assert (killed.status, killed.error) == ("unfinished", None)


def test_time_and_bytes_of_rows(tmp_path: Path) -> None:
    run = open_run(report_runs.pipeline(tmp_path / "run", num_steps=4))
    # two stages, every step 1 s and 100 bytes each; the run's first step ends 3 s after its start
    assert run.spent_s.tolist() == [1, 1, 2, 2, 3, 3, 4, 4]
    assert run.at_s.tolist() == [3, 3, 4, 4, 5, 5, 6, 6]
    assert run.sent.tolist() == [100 * i for i in range(1, 9)]
    assert run.end_s == 6.5


def test_rows_of_earlier_versions_begin_when_all_have_joined(tmp_path: Path) -> None:
    rows = [report_runs.row("stage 0", step) for step in (1, 2)]
    events = report_runs.stage_events(2, [])
    run = open_run(report_runs.make_run(tmp_path / "run", rows, events))
    assert run.at_s.tolist() == [2.1, 3.1]


def test_simulated_time_is_virtual(tmp_path: Path) -> None:
    run = open_run(report_runs.workers(tmp_path / "run", num_workers=2, num_steps=4))
    assert run.virtual
    # replica 0 ends a step at 1, 2, 3, 4 s, replica 1 at 2, 4 s
    assert sorted(run.at_s.tolist()) == [1, 2, 2, 3, 4, 4]
    assert run.spent_s.tolist() == run.at_s.tolist()
