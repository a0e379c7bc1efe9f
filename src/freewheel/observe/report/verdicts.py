"""What monitors measured, against the thresholds that they held it to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from freewheel.observe.report.columns import Floats, number
from freewheel.observe.report.run import Run
from freewheel.observe.report.style import ALARM, QUIET, Figure, axis, colour, layout, plain
from freewheel.observe.report.thin import numbers, positions

MAX_POINTS = 600
#: Plots of one run; of more monitors and processes, the first ones.
MAX_FIGURES = 12
#: Colour and symbol of each answer (monitors/base.py); any other has the last.
ANSWERS = {
    "trust": (colour(2), "circle"),
    "stay": (colour(0), "circle"),
    "doubt": (ALARM, "x"),
    "switch": (ALARM, "star"),
    "unsure": (QUIET, "circle-open"),
}


def verdict_figures(run: Run) -> list[tuple[str, Figure]]:
    """Return a title and a plot for each monitor (and process) that logged verdicts.

    They are events of kind ``verdict`` with ``monitor``, ``statistic``, ``threshold``, ``verdict``
    and ``step``.
    """
    by_monitor: dict[str, list[Mapping[str, Any]]] = {}
    for event in run.events:
        if event["event"] == "verdict":
            name = str(event.get("monitor", event.get("name", "monitor")))
            where = event.get("process")
            title = f"{name}, {where}" if where else name
            by_monitor.setdefault(title, []).append(event)
    found = [(title, _figure(run, events)) for title, events in by_monitor.items()]
    return found[:MAX_FIGURES]


def _figure(run: Run, events: list[Mapping[str, Any]]) -> Figure:
    by_step = all(np.isfinite(number(event.get("step"))) for event in events)
    statistic = np.array([number(event.get("statistic")) for event in events])
    kept = _extremes(statistic)
    events = [events[i] for i in kept]
    x = [number(event.get("step")) if by_step else run.event_at_s(event) for event in events]
    y = [number(event.get("statistic")) for event in events]
    threshold = [number(event.get("threshold")) for event in events]
    answers = [str(event.get("verdict", "-")) for event in events]
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "statistic",
            "x": positions(x),
            "y": numbers(y),
            "line": {"color": "#8A94A0", "width": 1.2},
            "hoverinfo": "skip",
        },
        {
            "type": "scatter",
            "mode": "lines",
            "name": "threshold",
            "x": positions(x),
            "y": numbers(threshold),
            "line": {"color": "#111111", "width": 1.6, "dash": "dash", "shape": "hv"},
            "hovertemplate": "threshold %{y:.4~g}<extra></extra>",
        },
    ]
    for answer in dict.fromkeys(answers):
        mine = [i for i, given in enumerate(answers) if given == answer]
        shade, mark = ANSWERS.get(answer, (colour(3), "square"))
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plain(answer),
                "x": positions([x[i] for i in mine]),
                "y": numbers([y[i] for i in mine]),
                "marker": {"color": shade, "symbol": mark, "size": 7},
                "hovertemplate": "%{y:.4~g} at %{x}",
            }
        )
    unit = "step" if by_step else "virtual time (s)" if run.virtual else "time (s)"
    return {
        "data": data,
        "layout": layout(300, xaxis=axis(unit), yaxis=axis("statistic")),
    }


def _extremes(values: Floats) -> list[int]:
    """Return indices of at most ``MAX_POINTS`` values: the lowest and highest of each stretch."""
    if len(values) <= MAX_POINTS:
        return list(range(len(values)))
    kept: set[int] = set()
    for stretch in np.array_split(np.arange(len(values)), MAX_POINTS // 2):
        finite = stretch[np.isfinite(values[stretch])]
        if len(finite):
            kept.update(
                (int(finite[values[finite].argmin()]), int(finite[values[finite].argmax()]))
            )
    return sorted(kept)
