"""What the plots of a report show, by arithmetic on made-up runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import report_runs
from freewheel.observe.report import Run, open_run, open_runs
from freewheel.observe.report.asynchrony import clocks_figure, staleness_counts, staleness_figure
from freewheel.observe.report.build import make_page
from freewheel.observe.report.learning import learning_figures
from freewheel.observe.report.spent import pairs, totals, totals_figure, waits_figure
from freewheel.observe.report.thin import MAX_POINTS, thin
from freewheel.observe.report.timeline import MAX_LANES, MAX_MARKS, shares, timeline_figure
from freewheel.observe.report.traffic import traffic_figure
from freewheel.observe.report.verdicts import MAX_POINTS as MAX_VERDICTS
from freewheel.observe.report.verdicts import verdict_figures


@pytest.fixture
def pipe(tmp_path: Path) -> Run:
    return open_run(report_runs.pipeline(tmp_path / "pipe"))


def figures_of(runs: list[Run]) -> dict[str, Any]:
    return dict(learning_figures(runs))


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), min_size=1, max_size=50),
    st.integers(1, 60),
)
def test_thinning_keeps_the_sum(points: list[tuple[float, float]], num_bins: int) -> None:
    x, y = np.array(points).T
    num = min(num_bins, len(x))
    mean_x, mean_y = thin(x, y, np.ones(len(x)), num_bins)
    counts = np.diff(np.append(np.arange(num) * len(x) // num, len(x)))
    assert len(mean_y) == num
    np.testing.assert_allclose(counts @ mean_y, y.sum(), rtol=1e-9, atol=1e-6)
    assert (np.diff(mean_x) >= -1e-6).all()


def test_a_metric_against_every_axis(pipe: Run) -> None:
    train, score = figures_of([pipe])["Accuracy"]["axes"]["steps"]["y"]
    assert len(train) == 40
    assert train[-1] == pytest.approx(1 - np.exp(-3), rel=1e-4)
    assert score == pytest.approx([0.51, 0.52, 0.53, 0.54])
    axes = figures_of([pipe])["Accuracy"]["axes"]
    assert [axes[key]["x"][1] for key in ("steps", "spent", "wall", "bytes")] == [
        [10, 20, 30, 40],
        [10, 20, 30, 40],
        [12.5, 22.5, 32.5, 42.5],
        [2000, 4000, 6000, 8000],
    ]


def test_replicas_are_averaged_by_samples(tmp_path: Path) -> None:
    rows = [
        report_runs.row("replica 0", 1, loss=1.0, samples=30),
        report_runs.row("replica 1", 1, loss=5.0, samples=10),
    ]
    run = open_run(report_runs.make_run(tmp_path / "run", rows))
    assert figures_of([run])["Loss"]["axes"]["spent"]["y"] == [[2.0]]  # (30 x 1 + 10 x 5) / 40
    assert figures_of([run])["Bytes sent per step"]["data"][0]["y"] == [200]


def test_workers_that_do_not_keep_step_are_averaged_over_time(tmp_path: Path) -> None:
    run = open_run(report_runs.workers(tmp_path / "run"))
    loss = figures_of([run])["Loss"]["axes"]
    x, y = loss["spent"]["x"][0], loss["spent"]["y"][0]
    assert x == sorted(x)
    np.testing.assert_allclose(y, 3 / (1 + np.array(x) / 10), rtol=0.02)  # as a function of time
    assert loss["bytes"]["x"][1][-1] == 100 * len(run.rows)


def test_long_runs_are_thinned_and_the_page_stays_as_light(tmp_path: Path) -> None:
    sizes = []
    for num_steps in (800, 3_200):
        path = report_runs.pipeline(tmp_path / f"{num_steps}", num_steps=num_steps)
        page = make_page(open_runs([path]))
        curves = [figure["data"] for figure in page.figures.values() if "axes" in figure]
        assert max(len(trace["x"]) for data in curves for trace in data) <= MAX_POINTS
        sizes.append(len(json.dumps(page.figures)))
    assert sizes[1] < 1.25 * sizes[0] < 300_000


def test_shares_of_time_add_up(pipe: Run) -> None:
    edges = np.linspace(0, 50, 17)
    found = shares(pipe, edges)
    for part, seconds in (("compute", 10.0), ("wait", 20.0), ("send", 10.0)):
        np.testing.assert_allclose(found[part] @ np.diff(edges), [seconds, seconds])
    inside = (edges[:-1] >= 2) & (edges[1:] <= 42)
    np.testing.assert_allclose(found["wait"][:, inside], 0.5)
    assert (found["wait"][:, edges[1:] <= 2] == 0).all()


def test_an_evaluation_is_in_no_part(tmp_path: Path) -> None:
    rows = [report_runs.row("stage 0", 1, at_s=1.0), report_runs.row("stage 0", 2, at_s=4.0)]
    run = open_run(report_runs.make_run(tmp_path / "run", rows))
    found = shares(run, np.array([0.0, 1.0, 2.0, 3.0, 4.0]))
    assert sum(found.values()).tolist() == [[1, 0, 0, 1]]


def test_total_time_and_who_waited_for_whom(tmp_path: Path) -> None:
    rows = [
        report_runs.row("stage 0", 1, wait_s=1.0, wait_for="stage 1"),
        report_runs.row("stage 1", 1, wait_s=2.0, wait_for="stage 0"),
        report_runs.row("stage 1", 2, wait_s=3.0, wait_for="stage 2"),
        report_runs.row("stage 1", 3, wait_s=4.0, wait_for="stage 0"),
        report_runs.row("stage 1", 4, wait_s=0.0, wait_for=None),
    ]
    run = open_run(report_runs.make_run(tmp_path / "run", rows))
    assert totals(run) == {"compute": [0.25, 1.0], "wait": [1.0, 9.0], "send": [0.25, 1.0]}
    assert pairs(run) == [
        ("stage 1", "stage 0", 6.0),
        ("stage 1", "stage 2", 3.0),
        ("stage 0", "stage 1", 1.0),
    ]


def test_nobody_waited(tmp_path: Path) -> None:
    run = open_run(report_runs.make_run(tmp_path / "run", [report_runs.row("stage 0", 1)]))
    assert waits_figure(run) is None


def test_bytes_by_cut_or_else_by_sender(tmp_path: Path, pipe: Run) -> None:
    figure = traffic_figure(pipe)
    assert figure is not None
    assert figure["data"][0]["y"] == ["stage 0 → stage 1", "stage 1 → stage 0"]
    assert figure["data"][0]["x"] == [4000, 4000]
    killed = traffic_figure(open_run(report_runs.unfinished(tmp_path / "killed")))
    assert killed is not None
    assert killed["data"][0]["y"] == ["stage 0", "stage 1"]
    assert killed["data"][0]["x"] == [700, 700]


def test_training_time_is_that_of_the_last_process_to_end_a_step(tmp_path: Path) -> None:
    rows = [
        report_runs.row("stage 1", 1, loss=2.0),
        report_runs.row("stage 0", 1, compute_s=2.25),
    ]
    run = open_run(report_runs.make_run(tmp_path / "run", rows))
    assert figures_of([run])["Loss"]["axes"]["spent"]["x"] == [[3.0]]


def test_evaluations_lie_behind_the_lanes(pipe: Run) -> None:
    figure = timeline_figure(pipe)
    assert figure is not None
    grounds = [(shape["x0"], shape["x1"]) for shape in figure["layout"]["shapes"]]
    assert grounds == [(12.0, 12.5), (22.0, 22.5), (32.0, 32.5), (42.0, 42.5)]


def test_staleness_of_rows_and_of_a_summary(tmp_path: Path) -> None:
    rows = [report_runs.row("replica 0", i + 1, staleness=s) for i, s in enumerate([0, 2, 2, 3])]
    run = open_run(report_runs.make_run(tmp_path / "a", rows))
    assert staleness_counts(run) == {0: 1, 2: 2, 3: 1}
    told = report_runs.summary(2, 1, staleness={"0": 6, "100": 2})
    other = open_run(report_runs.make_run(tmp_path / "b", summary=told))
    figure = staleness_figure([run, other])
    assert figure is not None
    assert [trace["y"] for trace in figure["data"]] == [[0.25, 0.75], [0.75, 0.25]]
    assert figure["data"][1]["customdata"] == ["0 to 1", "100 to 101"]


def test_clocks_are_drawn_where_processes_do_not_keep_step(tmp_path: Path, pipe: Run) -> None:
    assert clocks_figure(pipe) is None
    few = clocks_figure(open_run(report_runs.workers(tmp_path / "few", num_workers=2)))
    assert few is not None
    assert [line["y"][-1] for line in few["data"][:2]] == [60, 30]
    many = clocks_figure(open_run(report_runs.workers(tmp_path / "many", num_workers=20)))
    assert many is not None
    assert len(many["data"]) == 6  # fastest, median, slowest, of clock and version
    assert [many["data"][i]["y"][-1] for i in (0, 2)] == [60, 3]


def test_verdicts_keep_their_extremes(tmp_path: Path) -> None:
    events = report_runs.verdicts(10_000)
    events[5_123] |= {"statistic": 99.0, "verdict": "unsure"}
    events[7_001] |= {"statistic": None}
    run = open_run(report_runs.make_run(tmp_path / "run", events=events))
    ((title, figure),) = verdict_figures(run)
    statistic, threshold, *answers = figure["data"]
    assert title == "backtest, stage 1"
    assert len(statistic["x"]) <= MAX_VERDICTS
    assert (max(statistic["y"]), min(statistic["y"])) == (99, 0)
    assert set(threshold["y"]) == {1}
    assert {trace["name"] for trace in answers} == {"doubt", "trust", "unsure"}


def test_lanes_or_a_map_and_marks_of_events(tmp_path: Path, pipe: Run) -> None:
    lanes = timeline_figure(pipe)
    crowd = timeline_figure(
        open_run(report_runs.workers(tmp_path / "crowd", num_workers=MAX_LANES + 1))
    )
    assert lanes is not None
    assert crowd is not None
    assert {trace["type"] for trace in lanes["data"]} == {"scatter"}
    assert crowd["data"][0]["type"] == "heatmap"
    assert len(crowd["data"][0]["y"]) == MAX_LANES + 1
    marks = {trace["name"]: trace["x"] for trace in lanes["data"] if trace["mode"] == "markers"}
    assert marks["evaluated"] == [12.5, 22.5, 32.5, 42.5]


def test_what_ended_a_run_is_marked_among_many_kinds(tmp_path: Path) -> None:
    events = [
        {"event": f"kind {i % 30}", "at_s": i / 1000, "process": "stage 0"} for i in range(9000)
    ]
    events += [{"event": kind, "at_s": 9.0} for kind in ("failed", "failed", "died", "died")]
    run = open_run(report_runs.make_run(tmp_path / "run", events=events))
    figure = timeline_figure(run)
    assert figure is not None
    assert {"failed", "died"} < {trace["name"] for trace in figure["data"]}
    assert max(len(trace["x"]) for trace in figure["data"]) <= MAX_MARKS


def test_a_bar_for_each_process_with_its_shares(pipe: Run) -> None:
    compute, wait, send = totals_figure(pipe)["data"]
    assert [trace["x"] for trace in (compute, wait, send)] == [[10, 10], [20, 20], [10, 10]]
    assert wait["text"] == ["50%", "50%"]
