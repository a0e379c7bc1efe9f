"""What stages that coast remember of their own training: how far they moved, and how straight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freewheel.observe.report.columns import number
from freewheel.observe.report.run import Run
from freewheel.observe.report.style import Figure, axis, colour, layout, plain
from freewheel.observe.report.thin import numbers, positions

#: What is plotted of ``history`` events: field, title, unit of the axis.
FIELDS = (
    ("jump_norm", "length of jumps", "norm of the predicted change"),
    ("move_norm", "moves of training", "norm of the change between snapshots"),
    ("straightness", "straightness of the path", "1: a line; near 0: noise"),
    ("state_norm", "size of the parameters", "norm"),
    ("loss_mean", "loss before jumps", "mean training loss of the round"),
)
MAX_POINTS = 600


def history_figures(run: Run) -> list[tuple[str, Figure]]:
    """Return a title and a plot, with one line a stage, for each quantity that stages told.

    They are events of kind ``history``, one before each jump.
    """
    by_process: dict[str, list[Mapping[str, Any]]] = {}
    for event in run.events:
        if event["event"] == "history":
            by_process.setdefault(str(event.get("process", "-")), []).append(event)
    found = []
    for field, title, unit in FIELDS:
        lines = [
            _line(place, name, field, its) for place, (name, its) in enumerate(by_process.items())
        ]
        lines = [line for line in lines if line is not None]
        if lines:
            shape = layout(260, xaxis=axis("step"), yaxis=axis(unit))
            found.append((title, {"data": lines, "layout": shape}))
    return found


def _line(
    place: int, name: str, field: str, events: list[Mapping[str, Any]]
) -> dict[str, Any] | None:
    pairs = [(number(e.get("step")), number(e.get(field))) for e in events if field in e]
    if not pairs:
        return None
    pairs = pairs[:: -(-len(pairs) // MAX_POINTS)]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(name),
        "x": positions([x for x, _ in pairs]),
        "y": numbers([y for _, y in pairs]),
        "line": {"color": colour(place), "width": 1.2},
        "marker": {"color": colour(place), "size": 5},
        "hovertemplate": "%{y:.4~g} at step %{x}",
    }
