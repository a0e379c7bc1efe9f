"""What each process did when, on one time axis, and the events above it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from freewheel.observe.report.columns import Floats, number
from freewheel.observe.report.run import Run
from freewheel.observe.report.style import (
    ALARM,
    COMPUTE,
    PARTS,
    QUIET,
    WAIT,
    Figure,
    axis,
    layout,
    plain,
)
from freewheel.observe.report.thin import numbers, positions, spread

#: Bins of the time axis: a run of any length costs the page the same.
NUM_BINS = 160
#: Up to so many processes each get a lane; more share a map of the time that they waited.
MAX_LANES = 12
MAX_MARKS = 150
MAX_KINDS = 10
LANE_PX, KIND_PX = 44, 22
#: Events that end or hurt a run.
ALARMS = ("failed", "died", "killed", "error", "non_finite")


def shares(run: Run, edges: Floats) -> dict[str, Floats]:
    """Return which share of each bin every process spent in compute, wait and send.

    A step that ended at ``t`` and took ``d`` seconds spreads its parts evenly over ``[t - d, t]``;
    what no step covers (the start, an evaluation) is in no part.

    Args:
        run: with P processes.
        edges: B + 1 moments, ascending.

    Returns:
        For each part: P x B values between 0 and 1.
    """
    rows = run.rows
    found = {part: np.zeros((len(rows.processes), len(edges) - 1)) for part, _ in PARTS}
    for process in range(len(rows.processes)):
        mine = np.flatnonzero(rows.process == process)
        mine = mine[np.argsort(run.at_s[mine], kind="stable")]
        end = run.at_s[mine]
        begin = end - run.took_s[mine]
        begin[1:] = np.maximum(begin[1:], end[:-1])
        moments = np.column_stack([begin, end]).ravel()
        for part, _ in PARTS:
            done = np.cumsum(np.nan_to_num(rows[f"{part}_s"][mine]))
            so_far = np.column_stack([np.concatenate([[0.0], done[:-1]]), done]).ravel()
            inside = np.diff(np.interp(edges, moments, so_far))
            found[part][process] = inside / np.diff(edges)
    return {part: np.clip(values, 0.0, 1.0) for part, values in found.items()}


def timeline_figure(run: Run) -> Figure | None:
    """Return lanes of events, and a lane for each process; None where nothing is known.

    Args:
        run: with up to ``MAX_LANES`` processes; of more, a map of their waiting is drawn.
    """
    end_s = run.end_s
    if end_s <= 0:
        return None
    num_processes = len(run.rows.processes)
    edges = np.linspace(0.0, end_s, NUM_BINS + 1)
    kinds = _kinds(run)
    lanes = num_processes <= MAX_LANES
    body_px = LANE_PX * num_processes if lanes else min(480, max(160, 10 * num_processes))
    head_px = KIND_PX * len(kinds) + 8 if kinds else 0
    total_px = max(1, body_px + head_px)
    split = body_px / total_px  # the processes lie below it, the events above
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    if num_processes and lanes:
        _add_lanes(run, edges, split, data, axes)
    elif num_processes:
        _add_map(run, edges, split, data, axes)
    if kinds:
        _add_events(run, kinds, split, data, axes)
    title = "virtual time (s)" if run.virtual else "time since the run began (s)"
    shown = layout(total_px + 84, **axes, hovermode="closest")
    shown["shapes"] = _evaluations(run, split)
    shown["xaxis"] = axis(title, range=[0, end_s * 1.01], anchor="free", position=0)
    return {"data": data, "layout": shown}


def _evaluations(run: Run, split: float) -> list[dict[str, Any]]:
    """Return grey grounds where processes evaluated, behind their lanes."""
    found = [event for event in run.events if event["event"] == "evaluated"]
    ends = [run.event_at_s(found[i]) for i in spread(len(found), MAX_MARKS)]
    took = [number(found[i].get("seconds")) for i in spread(len(found), MAX_MARKS)]
    return [
        {
            "type": "rect",
            "layer": "below",
            "xref": "x",
            "yref": "paper",
            "x0": end - seconds,
            "x1": end,
            "y0": 0,
            "y1": split,
            "line": {"width": 0},
            "fillcolor": "#E6E9ED",
        }
        for end, seconds in zip(ends, took, strict=True)
        if seconds > 0 and np.isfinite(end) and not run.virtual
    ]


def _kinds(run: Run) -> dict[str, list[Mapping[str, Any]]]:
    """Return events by kind, rarest kinds first when there are too many for a lane each."""
    by_kind: dict[str, list[Mapping[str, Any]]] = {}
    for event in run.events:
        if np.isfinite(run.event_at_s(event)):
            by_kind.setdefault(event["event"], []).append(event)
    rarest = sorted(by_kind, key=lambda kind: (kind not in ALARMS, len(by_kind[kind])))[:MAX_KINDS]
    return {kind: by_kind[kind] for kind in by_kind if kind in rarest}


def _add_lanes(
    run: Run, edges: Floats, split: float, data: list[dict[str, Any]], axes: dict[str, Any]
) -> None:
    found = shares(run, edges)
    names = run.rows.processes
    height = split / len(names)
    for process, name in enumerate(names):
        place = process + 1
        key = "y" if place == 1 else f"y{place}"
        top = split - process * height
        axes[f"yaxis{'' if place == 1 else place}"] = axis(
            "",
            domain=[max(0.0, top - 0.86 * height), top],
            range=[0, 1],
            tickvals=[0.5],
            ticktext=[plain(name, 18)],
            ticks="",
            showgrid=False,
            fixedrange=True,
            showline=False,
        )
        for part, colour in PARTS:
            share = found[part][process]
            data.append(
                {
                    "type": "scatter",
                    "mode": "lines",
                    "name": part,
                    "legendgroup": part,
                    "showlegend": process == 0,
                    "x": positions(edges),
                    "y": numbers(np.append(share, share[-1]), 3),
                    "yaxis": key,
                    "stackgroup": key,
                    "line": {"width": 0, "shape": "hv", "color": colour},
                    "fillcolor": colour,
                    "hovertemplate": f"{plain(name)}, %{{x:.4~g}} s: {part} %{{y:.0%}}"
                    "<extra></extra>",
                }
            )


def _add_map(
    run: Run, edges: Floats, split: float, data: list[dict[str, Any]], axes: dict[str, Any]
) -> None:
    found = shares(run, edges)["wait"]
    shown = spread(len(found), 200)
    axes["yaxis"] = axis("", domain=[0, split], autorange="reversed", showgrid=False)
    data.append(
        {
            "type": "heatmap",
            "x": positions((edges[:-1] + edges[1:]) / 2),
            "y": [plain(run.rows.processes[i], 18) for i in shown],
            "z": [numbers(found[i], 2) for i in shown],
            "zmin": 0,
            "zmax": 1,
            "colorscale": [[0, "#F1F3F6"], [0.5, WAIT], [1, "#7A3E00"]],
            "colorbar": {
                "title": {"text": "share of time waiting", "side": "top", "font": {"size": 12}},
                "orientation": "h",
                "thickness": 10,
                "tickformat": ".0%",
                "y": 1.02,
                "yanchor": "bottom",
                "x": 0,
                "xanchor": "left",
                "len": 0.6,
            },
            "hovertemplate": "%{y}, %{x:.4~g} s: waiting %{z:.0%}<extra></extra>",
        }
    )


def _add_events(
    run: Run,
    kinds: Mapping[str, list[Mapping[str, Any]]],
    split: float,
    data: list[dict[str, Any]],
    axes: dict[str, Any],
) -> None:
    place = len(run.rows.processes) + 1 if len(run.rows.processes) <= MAX_LANES else 2
    key = "y" if place == 1 else f"y{place}"
    names = list(kinds)
    axes[f"yaxis{'' if place == 1 else place}"] = axis(
        "",
        domain=[min(1.0, split + 0.02), 1],
        range=[len(names) - 0.5, -0.5],
        tickvals=list(range(len(names))),
        ticktext=[plain(name, 18) for name in names],
        ticks="",
        fixedrange=True,
        showline=False,
    )
    for lane, (kind, events) in enumerate(kinds.items()):
        shown = [events[i] for i in spread(len(events), MAX_MARKS)]
        alarm = kind in ALARMS
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "cliponaxis": False,
                "name": plain(kind),
                "showlegend": False,
                "x": positions([run.event_at_s(event) for event in shown]),
                "y": [lane] * len(shown),
                "yaxis": key,
                "text": [plain(told(event), 90) for event in shown],
                "marker": {
                    "size": 11 if alarm else 8,
                    "symbol": "x" if alarm else "diamond",
                    "color": ALARM if alarm else COMPUTE if kind == "evaluated" else QUIET,
                },
                "hovertemplate": "%{x:.4~g} s: %{text}<extra></extra>",
            }
        )


def told(event: Mapping[str, Any]) -> str:
    """Return an event in one line, without its time.

    Example:
        >>> from freewheel.observe.report.timeline import told
        >>> told({"event": "evaluated", "at_s": 3.0, "step": 9, "metrics": {"loss": 0.25}})
        'evaluated, step 9, metrics loss 0.25'
    """
    return ", ".join([str(event["event"]), *details(event, ("event", "at_s", "virtual_s"))])


def details(event: Mapping[str, Any], without: tuple[str, ...]) -> list[str]:
    """Return ``key value`` of what an event holds, but for some keys."""
    return [f"{key} {value_text(value)}" for key, value in event.items() if key not in without]


def value_text(value: object) -> str:
    """Return a value of an event for a person."""
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, Mapping):
        return " ".join(f"{key} {value_text(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(value_text(item) for item in value)
    return "-" if value is None else str(value)
