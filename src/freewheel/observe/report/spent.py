"""Where the time of each process went, in all, and for whom it waited."""

from __future__ import annotations

import numpy as np

from freewheel.observe.report.run import Run
from freewheel.observe.report.style import PARTS, WAIT, Figure, axis, layout, plain
from freewheel.observe.report.thin import numbers

#: Processes with a bar of their own; of more, those that waited the most.
MAX_BARS = 24
MAX_PAIRS = 16


def totals(run: Run) -> dict[str, list[float]]:
    """Return the seconds of each process in each part, in the order of ``run.rows.processes``."""
    rows = run.rows
    return {
        part: [
            float(np.nansum(rows[f"{part}_s"][rows.process == process]))
            for process in range(len(rows.processes))
        ]
        for part, _ in PARTS
    }


def totals_figure(run: Run) -> Figure:
    """Return a bar for each process: seconds of compute, wait and send."""
    spent = totals(run)
    shown = sorted(range(len(run.rows.processes)), key=lambda i: -spent["wait"][i])[:MAX_BARS]
    shown.sort()
    names = [plain(run.rows.processes[i]) for i in shown]
    in_all = [max(1e-12, sum(spent[part][i] for part, _ in PARTS)) for i in shown]
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part,
            "y": names,
            "x": numbers([spent[part][i] for i in shown]),
            "text": [
                f"{spent[part][i] / of:.0%}" if spent[part][i] > 0.12 * of else ""
                for i, of in zip(shown, in_all, strict=True)
            ],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "textfont": {"size": 11, "color": "#FFFFFF" if part == "compute" else "#111111"},
            "marker": {"color": colour},
            "hovertemplate": "%{y}: %{x:.4~g} s",
        }
        for part, colour in PARTS
    ]
    shown_as = layout(
        90 + 30 * len(names),
        barmode="stack",
        bargap=0.25,
        xaxis=axis(f"{'virtual time' if run.virtual else 'time'} (s)"),
        yaxis=axis("", autorange="reversed", type="category", showgrid=False),
    )
    shown_as["legend"]["traceorder"] = "normal"
    return {"data": data, "layout": shown_as}


def pairs(run: Run) -> list[tuple[str, str, float]]:
    """Return who waited for whom and how many seconds, longest first.

    The wait of a step counts for the peer that the step waited for longest.
    """
    rows = run.rows
    waited = (rows.wait_for >= 0) & (np.nan_to_num(rows["wait_s"]) > 0)
    key = rows.process[waited] * max(1, len(rows.peers)) + rows.wait_for[waited]
    seconds = np.bincount(
        key, rows["wait_s"][waited], minlength=len(rows.processes) * max(1, len(rows.peers))
    )
    found = [
        (rows.processes[i // len(rows.peers)], rows.peers[i % len(rows.peers)], float(seconds[i]))
        for i in np.flatnonzero(seconds)
    ]
    return sorted(found, key=lambda pair: -pair[2])


def waits_figure(run: Run) -> Figure | None:
    """Return bars of the longest waits, by who waited and for whom; None where nobody did."""
    found = pairs(run)
    if not found:
        return None
    shown, rest = found[:MAX_PAIRS], found[MAX_PAIRS:]
    names = [plain(f"{who} ← {whom}", 40) for who, whom, _ in shown]
    values = [seconds for _, _, seconds in shown]
    if rest:
        names.append(f"{len(rest)} other pairs")
        values.append(sum(seconds for _, _, seconds in rest))
    in_all = sum(seconds for _, _, seconds in found)
    bars = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": numbers(values),
        "text": [f"{value / in_all:.0%}" for value in values],
        "textposition": "auto",
        "textangle": 0,
        "textfont": {"size": 11},
        "cliponaxis": False,
        "marker": {"color": WAIT},
        "hovertemplate": "%{y}: %{x:.4~g} s<extra></extra>",
    }
    return {
        "data": [bars],
        "layout": layout(
            74 + 30 * len(names),
            bargap=0.25,
            showlegend=False,
            xaxis=axis(f"{'virtual time' if run.virtual else 'time'} waited (s)"),
            yaxis=axis("", autorange="reversed", type="category", showgrid=False),
        ),
    }
