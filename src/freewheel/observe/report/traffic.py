"""Bytes that crossed each cut, or went to each peer."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from freewheel.observe.report.columns import number
from freewheel.observe.report.run import Run
from freewheel.observe.report.style import Figure, axis, colour, layout, plain
from freewheel.observe.report.thin import numbers

#: Bars; of more cuts, those with the most bytes.
MAX_BARS = 24


def bytes_by_cut(run: Run) -> tuple[dict[str, float], bool]:
    """Return bytes by ``"sender -> receiver"``, and whether the receivers are known.

    The summary knows them; of a run without one, the rows tell the senders alone.
    """
    cuts = (run.summary or {}).get("bytes_by_cut")
    if isinstance(cuts, Mapping) and cuts:
        return {str(name): number(value) for name, value in cuts.items()}, True
    rows = run.rows
    sent = np.nan_to_num(rows["bytes_sent"])
    by = {name: float(sent[rows.process == i].sum()) for i, name in enumerate(rows.processes)}
    return by, False


def traffic_figure(run: Run) -> Figure | None:
    """Return a bar for each cut (and direction); None where no byte was sent."""
    by, _ = bytes_by_cut(run)
    found = [(name, value) for name, value in by.items() if value > 0]
    if not found:
        return None
    kept = set(sorted(found, key=lambda pair: -pair[1])[:MAX_BARS])
    shown = [pair for pair in found if pair in kept]
    names = [plain(name.replace("->", "→"), 44) for name, _ in shown]
    values = [value for _, value in shown]
    if len(found) > len(shown):
        names.append(f"{len(found) - len(shown)} others")
        values.append(sum(value for _, value in found) - sum(values))
    whole = sum(values)
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": numbers(values, 6),
        "text": [f"{value / whole:.0%}" for value in values],
        "textposition": "auto",
        "textangle": 0,
        "textfont": {"size": 11},
        "cliponaxis": False,
        "marker": {"color": colour(2)},
        "hovertemplate": "%{y}: %{x:.4~s}B<extra></extra>",
    }
    return {
        "data": [bars],
        "layout": layout(
            74 + 30 * len(names),
            bargap=0.25,
            showlegend=False,
            xaxis=axis("bytes sent (B)", tickformat="~s", ticksuffix="B"),
            yaxis=axis("", autorange="reversed", type="category", showgrid=False),
        ),
    }
