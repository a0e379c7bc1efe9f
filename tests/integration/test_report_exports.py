"""Other libraries accept what a report hands them: plotly its figures, TensorBoard its events."""

from __future__ import annotations

from pathlib import Path

import pytest

import report_runs
from freewheel.errors import ConfigError
from freewheel.observe.report import open_runs
from freewheel.observe.report.build import make_page
from freewheel.observe.tensorboard import write_tensorboard

EVENTS = "tensorboard.backend.event_processing.event_accumulator"


def test_plotly_accepts_every_figure(tmp_path: Path) -> None:
    graph_objects = pytest.importorskip("plotly.graph_objects")
    runs = open_runs(
        [
            report_runs.pipeline(tmp_path / "a"),
            report_runs.workers(tmp_path / "b"),
            report_runs.workers(tmp_path / "c", num_workers=20, name="crowd"),
            report_runs.failed(tmp_path / "d"),
        ]
    )
    figures = make_page(runs).figures
    assert len(figures) > 15
    for figure in figures.values():
        graph_objects.Figure(data=figure["data"], layout=figure["layout"])


def test_tensorboard_reads_the_scalars(tmp_path: Path) -> None:
    run = report_runs.pipeline(tmp_path / "run", name="../../a/b")
    accumulator = pytest.importorskip(EVENTS)
    (folder,) = write_tensorboard(open_runs([run]), tmp_path / "tb")
    assert folder.parent == tmp_path / "tb"
    read = accumulator.EventAccumulator(str(folder))
    read.Reload()
    scored = read.Scalars("scored/accuracy")
    assert [(point.step, round(point.value, 5)) for point in scored] == [
        (10, 0.51),
        (20, 0.52),
        (30, 0.53),
        (40, 0.54),
    ]
    assert scored[1].wall_time - scored[0].wall_time == pytest.approx(10.0, abs=1e-3)
    assert len(read.Scalars("train/loss")) == 40
    waited = read.Scalars("seconds/wait/stage 1")
    assert sum(point.value for point in waited) == pytest.approx(20.0)


def test_events_cannot_be_written(tmp_path: Path) -> None:
    run = report_runs.failed(tmp_path / "run")
    with pytest.raises(ConfigError, match="cannot write TensorBoard events into"):
        write_tensorboard(open_runs([run]), run / "config.toml")
