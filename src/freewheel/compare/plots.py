"""The plots of a comparison, as plotly figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from freewheel.compare.cells import Unit, size
from freewheel.compare.statistics import Estimate
from freewheel.compare.table import Row, Table
from freewheel.observe.report.style import INK, QUIET, Figure, axis, colour, layout, plain

_FRONT = "#B4BCC6"
#: Pictures reach so many margins from vanilla: what is far off would squeeze all else together.
_REACH = 8.0
_ABOVE = 3.0


def pareto(table: Table, against: str) -> Figure:
    """Return the metric of each arm against what it cost.

    Args:
        table: what was measured.
        against: ``"bytes"``, or the name of a link for the time over it.
    """
    unit, points = Unit(table), []
    for row in table.rows:
        spent = _spent(row, against)
        if row.metric is not None and spent is not None and spent.value > 0:
            points.append((row, spent))
    front = _front(points, table.section.higher_is_better)
    scale = unit.scale
    traces: list[dict[str, Any]] = [
        {
            "x": [spent.value for _, spent in front],
            "y": [scale * _value(row.metric) for row, _ in front],
            "mode": "lines",
            "line": {"color": _FRONT, "width": 2, "shape": "hv"},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    ]
    for row, spent in points:
        text = size(spent.value) if against == "bytes" else f"{spent.value:,.1f} s"
        y, beyond = _clipped(table, _value(row.metric))
        mark = _mark(table, row) | (_POINTED[y < _value(row.metric)] if beyond else {})
        traces.append(
            {
                "x": [spent.value],
                "y": [scale * y],
                "error_y": {} if beyond else _bar(row.metric, scale, mark["color"]),
                "error_x": _bar(spent, 1.0, mark["color"]),
                "mode": "markers",
                "marker": mark,
                "name": plain(row.arm.name),
                "hovertemplate": f"{plain(row.arm.name)}<br>{unit.estimate(row.metric)}"
                f"<br>{text}<extra></extra>",
            }
        )
    title = "bytes sent in training" if against == "bytes" else "seconds of training"
    x = axis(title, **_LOG, ticksuffix="B" if against == "bytes" else " s")
    return _figure(traces, x, _metric_axis(table), 460, _level_lines(table))


def differences(table: Table) -> Figure:
    """Return the paired differences to vanilla, one line an arm, best seen from top to bottom."""
    unit = Unit(table)
    rows = [row for row in table.rows if row.difference is not None]
    rows.reverse()  # plotly counts from below
    names = [plain(row.arm.name, 48) for row in rows]
    scale = unit.scale
    traces: list[dict[str, Any]] = []
    for name, row in zip(names, rows, strict=True):
        mark = _mark(table, row)
        values = table.differences(row.arm)
        traces.append(
            {
                "x": [scale * _clipped_difference(table, value)[0] for value in values],
                "y": [name] * len(values),
                "mode": "markers",
                "marker": {"color": mark["color"], "size": 5, "opacity": 0.45},
                "hovertemplate": "%{x:+.3f}<extra>one seed</extra>",
            }
        )
        x, beyond = _clipped_difference(table, _value(row.difference))
        side = {True: "triangle-right", False: "triangle-left"}[x < _value(row.difference)]
        traces.append(
            {
                "x": [scale * x],
                "y": [name],
                "error_x": {} if beyond else _bar(row.difference, scale, mark["color"]),
                "mode": "markers",
                "marker": mark | ({"symbol": side} if beyond else {}),
                "hovertemplate": f"{name}<br>{unit.signed(row.difference)}<extra></extra>",
            }
        )
    at = table.target_difference
    lines = [_vertical(0.0, QUIET, "solid")]
    if at is not None:
        lines.append(_vertical(scale * at, INK, "dash"))
    y = axis("", categoryorder="array", categoryarray=names)
    x_axis = axis(f"{unit.head}, to vanilla", **_range(_difference_span(table), scale))
    figure = _figure(traces, x_axis, y, 90 + 30 * len(rows), lines)
    figure["layout"]["showlegend"] = False
    return figure


def curves(table: Table, against: str) -> Figure:
    """Return the metric on the way of training, mean over the seeds.

    Args:
        table: what was measured.
        against: ``"bytes"`` or ``"step"``.
    """
    unit, column = Unit(table), {"step": 0, "bytes": 2}[against]
    traces = []
    for row in table.rows:
        if against == "bytes" and row.arm.kind == "floor":
            continue
        points = _mean_curve(table, row, column)
        if points:
            mark = _mark(table, row)
            traces.append(
                {
                    "x": [x for x, _ in points],
                    "y": [unit.scale * y for _, y in points],
                    "mode": "lines",
                    "line": {"color": mark["color"], "width": 2, "dash": _DASHES[row.arm.kind]},
                    "name": plain(row.arm.name),
                    "hovertemplate": f"{plain(row.arm.name)}<br>%{{y:.2f}}<extra></extra>",
                }
            )
    kind = {**_LOG, "ticksuffix": "B"} if against == "bytes" else {}
    title = "bytes sent in training" if against == "bytes" else "step"
    y = _metric_axis(table)
    return _figure(traces, axis(title, **kind), y, 460, _level_lines(table, False))


def _difference_span(table: Table) -> tuple[float, float] | None:
    """Return the lowest and the highest difference to vanilla that a picture shows."""
    margin = abs(table.target_difference or 0.0)
    if margin == 0.0:
        return None
    worse, better = _REACH * margin, _ABOVE * margin
    return (-worse, better) if table.section.higher_is_better else (-better, worse)


def _clipped_difference(table: Table, value: float) -> tuple[float, bool]:
    span = _difference_span(table)
    if span is None or span[0] <= value <= span[1]:
        return value, False
    # a little inside, so that the mark is whole
    inside = 0.025 * (span[1] - span[0])
    return min(max(value, span[0] + inside), span[1] - inside), True


def _clipped(table: Table, value: float) -> tuple[float, bool]:
    level = table.vanilla_mean
    if level is None:
        return value, False
    difference, beyond = _clipped_difference(table, value - level)
    return (level + difference if beyond else value), beyond


def _metric_axis(table: Table) -> dict[str, Any]:
    unit, span, level = Unit(table), _difference_span(table), table.vanilla_mean
    shown = None if span is None or level is None else (level + span[0], level + span[1])
    return axis(unit.head, **_range(shown, unit.scale))


def _range(span: tuple[float, float] | None, scale: float) -> dict[str, Any]:
    return {} if span is None else {"range": [scale * span[0], scale * span[1]]}


#: By whether the value is above the picture.
_POINTED = {True: {"symbol": "triangle-up"}, False: {"symbol": "triangle-down"}}
_LOG = {"type": "log", "exponentformat": "SI", "dtick": "D2"}
_DASHES = {"vanilla": "solid", "arm": "solid", "control": "dash", "floor": "dot"}


def _mean_curve(table: Table, row: Row, column: int) -> list[tuple[float, float]]:
    found = [table.unit(row.arm, seed) for seed in table.seeds]
    all_curves = [unit.measured["curve"] for unit in found if unit is not None]
    points = []
    # budgets differ a little from seed to seed: the n-th evaluations belong together
    for group in zip(*all_curves, strict=False):
        count = len(group)
        points.append((sum(p[column] for p in group) / count, sum(p[1] for p in group) / count))
    return points


def _mark(table: Table, row: Row) -> dict[str, Any]:
    """Return the marker of a row: arms filled, controls open in the colour of their arm."""
    owners = [r.arm.name for r in table.rows if r.arm.kind in ("vanilla", "arm")]
    owner = row.arm.of or row.arm.name
    if row.arm.kind == "vanilla":
        return {"color": INK, "symbol": "star", "size": 13}
    tint = colour(owners.index(owner) - 1) if owner in owners else QUIET
    if row.arm.kind == "arm":
        return {"color": tint, "symbol": "circle", "size": 11}
    symbol = "triangle-up-open" if row.arm.budget_of else "square-open"
    if row.arm.kind == "floor":
        symbol = "line-ew-open"
    return {"color": tint, "symbol": symbol, "size": 11, "line": {"width": 2, "color": tint}}


def _spent(row: Row, against: str) -> Estimate | None:
    if against == "bytes":
        return row.num_bytes
    cost = row.costs.get(against)
    return None if cost is None else cost.wall_s


def _front(
    points: Sequence[tuple[Row, Estimate]], higher_is_better: bool
) -> list[tuple[Row, Estimate]]:
    """Return the points that no other beats in both, the cheapest first."""
    sign = 1.0 if higher_is_better else -1.0
    front: list[tuple[Row, Estimate]] = []
    best = float("-inf")
    for row, spent in sorted(points, key=lambda point: point[1].value):
        level = sign * _value(row.metric)
        if level > best:
            front.append((row, spent))
            best = level
    return front


def _level_lines(table: Table, with_floors: bool = True) -> list[dict[str, Any]]:
    unit, lines = Unit(table), []
    if table.target is not None:
        lines.append(_horizontal(unit.scale * table.target, INK, "dash"))
    for row in table.rows if with_floors else ():
        if row.arm.kind == "floor" and row.metric is not None:
            lines.append(_horizontal(unit.scale * row.metric.value, QUIET, "dot"))
    return lines


def _value(found: Estimate | None) -> float:
    return 0.0 if found is None else found.value


def _bar(found: Estimate | None, scale: float, tint: str) -> dict[str, Any]:
    half = None if found is None else found.half
    return {"array": [scale * (half or 0.0)], "visible": bool(half), "color": tint, "width": 4}


def _horizontal(y: float, tint: str, dash: str) -> dict[str, Any]:
    line = {"color": tint, "dash": dash, "width": 1}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}


def _vertical(x: float, tint: str, dash: str) -> dict[str, Any]:
    line = {"color": tint, "dash": dash, "width": 1}
    return {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": x, "x1": x, "line": line}


def _figure(
    traces: list[dict[str, Any]],
    x: dict[str, Any],
    y: dict[str, Any],
    height: int,
    lines: list[dict[str, Any]],
) -> Figure:
    return {"data": traces, "layout": layout(height, xaxis=x, yaxis=y, shapes=lines)}
