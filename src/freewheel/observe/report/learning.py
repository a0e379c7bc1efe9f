"""How well a run did: metrics in training and scored, against time, bytes and steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from freewheel.observe.report.columns import Floats, number
from freewheel.observe.report.run import Run
from freewheel.observe.report.style import (
    ALARM,
    Figure,
    axis,
    colour,
    dash,
    layout,
    plain,
    symbol,
)
from freewheel.observe.report.thin import MAX_POINTS, by_step, numbers, positions, spread, thin

#: What can stand on the x axis: key, the word on the switch. The first one is shown at first.
AXES = (
    ("spent", "Training time"),
    ("wall", "Time since start"),
    ("bytes", "Bytes sent"),
    ("steps", "Steps"),
)
#: Metrics other than the loss that get a plot; further ones are in the CSV export.
MAX_METRICS = 4

Points = tuple[list[float | None], list[float | None]]


@dataclass(frozen=True)
class Curve:
    """One line of a plot, once for each x axis.

    Args:
        name: in the legend.
        style: properties of the trace.
        points: x and y by key of ``AXES``.
    """

    name: str
    style: Mapping[str, Any]
    points: Mapping[str, Points]


def axis_settings(key: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return what an x axis shows for a key of ``AXES``: its title with the unit, and its ticks."""
    virtual = sum(run.virtual for run in runs)
    kind = "virtual time" if virtual == len(runs) else "time, virtual if simulated"
    titles = {
        "spent": f"{kind} (s)" if virtual else "training time (s)",
        "wall": f"{kind} (s)" if virtual else "time since the run began (s)",
        "bytes": "bytes sent by all processes (B)",
        "steps": "steps",
    }
    is_bytes = key == "bytes"
    return {
        "xaxis.title.text": titles[key],
        "xaxis.tickformat": "~s" if is_bytes else "",
        "xaxis.ticksuffix": "B" if is_bytes else "",
    }


def positions_of_rows(run: Run) -> dict[str, Floats]:
    """Return the x of every row, by key of ``AXES``."""
    return {
        "spent": run.spent_s,
        "wall": run.at_s,
        "bytes": run.sent,
        "steps": run.rows["step"],
    }


def training(run: Run, y: Floats, scale: float = 1.0) -> dict[str, Points]:
    """Return the curve of a column, thinned: mean over processes, weighted by samples.

    Where processes keep step, a step is one point, at the time when the last of them had done it.
    Where they do not, points are means over neighbours in time (or bytes).

    Args:
        run: whose rows they are.
        y: a value for each row, NaN where it has none.
        scale: multiplies y.
    """
    there = np.isfinite(y)
    if not there.any():
        return {}
    y = y[there] * scale
    weight = np.nan_to_num(run.rows["samples"][there])
    weight = np.where(weight > 0, weight, 1e-9)
    num_processes = len(np.unique(run.rows.process[there]))
    steps, mean, total = by_step(run.rows["step"][there], y, weight)
    of_steps = np.isin(run.rows["step"], steps)  # rows of all processes, also those without y
    place = np.searchsorted(steps, run.rows["step"][of_steps])
    points = {}
    for key, x in positions_of_rows(run).items():
        if key == "steps" or not run.rows.has("version"):
            last = np.zeros(len(steps))
            np.maximum.at(last, place, x[of_steps])
            found = thin(last, mean, total, MAX_POINTS)
        else:
            found = thin(x[there], y, weight, min(MAX_POINTS, len(y) // num_processes))
        points[key] = (positions(found[0]), numbers(found[1]))
    return points


def scored(run: Run, metric: str) -> dict[str, Points]:
    """Return the curve of a metric over evaluations."""
    events = [
        event
        for event in run.events
        if event["event"] == "evaluated"
        and isinstance(event.get("metrics"), Mapping)
        and np.isfinite(number(event["metrics"].get(metric)))
    ]
    events = [events[i] for i in spread(len(events), MAX_POINTS)]
    if not events:
        return {}
    y = numbers([number(event["metrics"][metric]) for event in events])
    where = [position_of_evaluation(run, event) for event in events]
    return {key: (positions([x[key] for x in where]), y) for key, _ in AXES}


def position_of_evaluation(run: Run, event: Mapping[str, Any]) -> dict[str, float]:
    """Return the x of an evaluation, by key of ``AXES``.

    Time and bytes are those when all processes had done its step, where processes keep step. Where
    they do not (rows have a version of the server), they are those at the time it began.
    """
    step, at_s = number(event.get("step")), run.event_at_s(event)
    began_s = at_s if run.virtual else at_s - np.nan_to_num(number(event.get("seconds")))
    by_time = run.virtual or (run.rows.has("version") and run.rows.complete("at_s"))
    before = run.at_s <= began_s if by_time else run.rows["step"] <= step

    def latest(x: Floats) -> float:
        return float(x[before].max()) if before.any() else 0.0

    spent = began_s if run.virtual else latest(run.spent_s)
    known = run.virtual or run.rows.complete("at_s")
    wall = at_s if known else latest(run.at_s)
    return {"spent": spent, "wall": wall, "bytes": latest(run.sent), "steps": step}


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of metrics, the loss first and the accuracy next."""
    names: dict[str, None] = {"loss": None, "accuracy": None}
    for run in runs:
        names.update(dict.fromkeys(run.rows.metrics))
        for event in run.events:
            if event["event"] == "evaluated" and isinstance(event.get("metrics"), Mapping):
                names.update(dict.fromkeys(event["metrics"]))
    return list(names)[: MAX_METRICS + 1]


def learning_figures(runs: Sequence[Run]) -> list[tuple[str, Figure]]:
    """Return titles and plots that follow the switch of the x axis.

    Args:
        runs: to draw into the same plots.

    Returns:
        Those for which any run has data: each metric, learning rate, bytes per step.
    """

    def column(run: Run, metric: str) -> Floats:
        rows = run.rows
        none = np.full(len(rows), np.nan)
        return rows["loss"] if metric == "loss" else rows.metrics.get(metric, none)

    panels: list[tuple[str, str, Callable[[int, Run], list[Curve]]]] = []
    for metric in metric_names(runs):

        def both(place: int, run: Run, metric: str = metric) -> list[Curve]:
            return _metric_curves(place, run, len(runs), column(run, metric), scored(run, metric))

        panels.append((metric.capitalize(), metric, both))

    def sent(place: int, run: Run) -> list[Curve]:
        scale = float(len(run.rows.processes))
        points = training(run, run.rows["bytes_sent"], scale)
        return [Curve(run.label, _line(place, 1.6), points)] if points else []

    def rate(place: int, run: Run) -> list[Curve]:
        points = training(run, run.rows["lr"])
        return [Curve(run.label, _line(place, 1.6), points)] if points else []

    panels.append(("Bytes sent per step", "bytes per step (B)", sent))
    panels.append(("Learning rate", "learning rate", rate))
    found = []
    for title, unit, make in panels:
        curves = [curve for place, run in enumerate(runs) for curve in make(place, run)]
        if curves:
            found.append((title, _figure(unit, curves, runs)))
    return found


def _metric_curves(
    place: int, run: Run, num_runs: int, y: Floats, score: Mapping[str, Points]
) -> list[Curve]:
    """Return the training curve, faint, the scored one, marked, and an x where the run broke."""
    curves = []
    train = training(run, y)
    alone = num_runs == 1
    group = {"legendgroup": str(place)}
    if train:
        style = {**_line(place, 1.2), **group, "opacity": 0.55, "showlegend": alone or not score}
        curves.append(Curve("training" if alone else run.label, style, train))
    if score:
        style = {
            **_line(place, 2.2),
            **group,
            "mode": "lines+markers",
            "marker": {"size": 8, "symbol": symbol(place), "color": colour(place)},
        }
        name = "scored" if alone else run.label
        curves.append(Curve(name, style, score))
    if train and run.status == "failed":
        last = {key: ([x[-1]], [y[-1]]) for key, (x, y) in train.items()}
        mark = {"symbol": "x", "size": 11, "color": ALARM, "line": {"width": 1, "color": "#FFFFFF"}}
        style = {"mode": "markers", "marker": mark, **group, "showlegend": alone}
        curves.append(Curve("failed here" if alone else f"{run.label}: failed", style, last))
    return curves


def _line(place: int, width: float) -> dict[str, Any]:
    return {"mode": "lines", "line": {"color": colour(place), "width": width, "dash": dash(place)}}


def _figure(unit: str, curves: Sequence[Curve], runs: Sequence[Run]) -> Figure:
    first = AXES[0][0]
    data = [
        {
            "type": "scatter",
            "name": plain(curve.name),
            "x": curve.points[first][0],
            "y": curve.points[first][1],
            "hovertemplate": "%{y:.5~g} at %{x}",
            **curve.style,
            **({"mode": "markers"} if len(curve.points[first][0]) == 1 else {}),
        }
        for curve in curves
    ]
    if len(data) == 1 and len(runs) == 1:
        data[0]["showlegend"] = False
    bytes_y = {"tickformat": "~s", "ticksuffix": "B"} if unit.endswith("(B)") else {}
    low_y = {} if unit == "loss" else {"rangemode": "tozero"}
    switch: dict[str, dict[str, Any]] = {
        key: {
            "x": [curve.points[key][0] for curve in curves],
            "y": [curve.points[key][1] for curve in curves],
            "layout": axis_settings(key, runs),
        }
        for key, _ in AXES
    }
    x_axis = axis(switch[first]["layout"]["xaxis.title.text"], rangemode="tozero")
    shown = layout(
        300, xaxis=x_axis, yaxis=axis(plain(unit), **bytes_y, **low_y), hovermode="closest"
    )
    return {"data": data, "layout": shown, "axes": switch}
