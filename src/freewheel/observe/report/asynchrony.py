"""How far apart the workers were: staleness of their updates, their clocks and versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from freewheel.observe.report.columns import Floats, number
from freewheel.observe.report.run import Run
from freewheel.observe.report.style import Figure, axis, colour, dash, layout, plain
from freewheel.observe.report.thin import numbers, positions, spread

#: Bars of a histogram; beyond, neighbouring values share one.
MAX_BARS = 60
#: Workers with a line of their own; more become the slowest, the median and the fastest.
MAX_LINES = 10
NUM_POINTS = 150
#: Height of two panels, one above the other, and of what stands beside them.
PAIRED_PX = 440


def staleness_counts(run: Run) -> dict[int, float]:
    """Return how many updates had each staleness (versions applied since the worker pulled)."""
    if run.rows.has("staleness"):
        values = run.rows["staleness"]
        found, counts = np.unique(values[np.isfinite(values)].astype(int), return_counts=True)
        return dict(zip(found.tolist(), map(float, counts), strict=True))
    told = (run.summary or {}).get("staleness")
    if not isinstance(told, Mapping):
        return {}
    return {int(key): number(value) for key, value in told.items() if str(key).isdecimal()}


def staleness_figure(runs: Sequence[Run], height: int = 300) -> Figure | None:
    """Return histograms of staleness, in shares of each run's updates; None where no run has it."""
    counted = [(place, run, staleness_counts(run)) for place, run in enumerate(runs)]
    counted = [(place, run, counts) for place, run, counts in counted if counts]
    if not counted:
        return None
    top = max(max(counts) for _, _, counts in counted)
    width = max(1, -(-(top + 1) // MAX_BARS))
    data = []
    for place, run, counts in counted:
        binned: dict[int, float] = {}
        for value, count in counts.items():
            binned[value // width] = binned.get(value // width, 0.0) + count
        whole = sum(binned.values())
        bins = sorted(binned)
        data.append(
            {
                "type": "bar",
                "name": plain(run.label),
                "x": [b * width + (width - 1) / 2 for b in bins],
                "y": numbers([binned[b] / whole for b in bins]),
                "customdata": [f"{b * width}" if width == 1 else _range(b, width) for b in bins],
                "marker": {"color": colour(place)},
                "hovertemplate": "staleness %{customdata}: %{y:.1%} of updates",
            }
        )
    return {
        "data": data,
        "layout": layout(
            height,
            barmode="group",
            bargap=0.15,
            showlegend=len(runs) > 1,
            xaxis=axis("staleness (versions applied since the pull)"),
            yaxis=axis("share of updates", tickformat=".0%", rangemode="tozero"),
        ),
    }


def clocks_figure(run: Run) -> Figure | None:
    """Return clocks of the workers over time, and their versions where rows have them.

    None where rows have no version and processes keep step: none lags by more than one.
    """
    rows = run.rows
    if not rows.has("clock") or (not rows.has("version") and _lag(run) <= 1):
        return None
    panels = [("clock", "clock (local steps)")]
    if rows.has("version"):
        panels.append(("version", "version (server's updates)"))
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for place, (column, title) in enumerate(panels):
        key, name = ("y", "yaxis") if place == 0 else ("y2", "yaxis2")
        share = 1 / len(panels)
        domain = [1 - (place + 0.9) * share, 1 - place * share] if len(panels) > 1 else [0, 1]
        axes[name] = axis(title, domain=domain, rangemode="tozero")
        data += [{**line, "yaxis": key, "showlegend": place == 0} for line in _lines(run, column)]
    title = "virtual time (s)" if run.virtual else "time since the run began (s)"
    x_axis = axis(title, anchor="free", position=0)
    return {
        "data": data,
        "layout": layout(PAIRED_PX if len(panels) > 1 else 300, xaxis=x_axis, **axes),
    }


def _lines(run: Run, column: str) -> list[dict[str, Any]]:
    rows = run.rows
    series: list[tuple[str, Floats, Floats]] = []
    for process, name in enumerate(rows.processes):
        mine = (rows.process == process) & np.isfinite(rows[column])
        order = np.argsort(run.at_s[mine], kind="stable")
        if mine.any():
            series.append((name, run.at_s[mine][order], rows[column][mine][order]))
    if len(series) > MAX_LINES:
        series = _quantiles(series)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": plain(name),
            "legendgroup": plain(name),
            "x": positions(x[spread(len(x), NUM_POINTS)]),
            "y": numbers(y[spread(len(x), NUM_POINTS)], 7),
            "line": {"color": colour(place), "width": 1.8, "dash": dash(place)},
            "hovertemplate": f"%{{x:.4~g}} s: {column} %{{y}}",
        }
        for place, (name, x, y) in enumerate(series)
    ]


def _quantiles(series: Sequence[tuple[str, Floats, Floats]]) -> list[tuple[str, Floats, Floats]]:
    """Return the slowest, the median and the fastest worker at each moment."""
    moments = np.linspace(0.0, max(x[-1] for _, x, _ in series), NUM_POINTS)
    reached = []
    for _, x, y in series:
        place = np.searchsorted(x, moments, side="right") - 1
        reached.append(np.where(place >= 0, y[np.maximum(place, 0)], 0.0))
    slow, middle, fast = np.quantile(np.array(reached), [0.0, 0.5, 1.0], axis=0)
    of = f"of {len(series)} workers"
    return [
        (f"fastest {of}", moments, fast),
        ("median", moments, middle),
        ("slowest", moments, slow),
    ]


def _lag(run: Run) -> float:
    """Return by how many steps a process was behind the first one, at most, when it ended one."""
    order = np.argsort(run.at_s, kind="stable")
    clocks = np.nan_to_num(run.rows["clock"][order])
    return float((np.maximum.accumulate(clocks) - clocks).max())


def _range(place: int, width: int) -> str:
    return f"{place * width} to {place * width + width - 1}"
