"""A plan for a person: a table on the terminal, and one HTML page with the picture."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from freewheel.observe.progress import size
from freewheel.observe.report.page import Page, grid
from freewheel.observe.report.style import Figure, axis, colour, dash, layout, plain, seconds
from freewheel.plan.measure import Measured
from freewheel.plan.predict import Prediction

#: Said of every plan: what it does not know.
CAVEAT = (
    "Predicted, cost only: accuracy is not in it. Compare it with `freewheel "
    "compare`, or in virtual time with `freewheel simulate`."
)


def facts(found: Measured) -> dict[str, str]:
    """Return what was measured, for a person."""
    rate = "no limit" if found.link.rate_mbit is None else f"{found.link.rate_mbit:,.0f} Mbit/s"
    uneven = ", ".join(f"{factor:.2f}x" for factor in found.factors)
    return {
        "a step": f"{seconds(found.step_s)} on the fastest of {len(found.durations_s)} workers",
        "workers": f"{uneven} of that; {found.slow_share:.1%} of all steps are beyond 2x",
        "link": f"{rate}, {found.link.delay_ms:.3g} ms one way",
        "parameters": size(found.num_bytes),
        "server": f"{seconds(found.server_s)} for one push",
        "measured in": seconds(found.took_s),
    }


def rows(
    predictions: Sequence[Prediction], chosen: Prediction
) -> tuple[list[str], list[list[str]]]:
    """Return the table: headings, and a row for each protocol."""
    scales = list(predictions[0].rates)
    heads = ["protocol", "time", "bytes", "waiting", *(f"samples/s at {n}" for n in scales)]
    body = [
        [
            f"{each.name} (recommended)" if each is chosen else each.name,
            seconds(each.time_s),
            size(each.num_bytes),
            f"{each.wait_share:.0%}",
            *(f"{each.rates[n]:,.0f}" for n in scales),
        ]
        for each in predictions
    ]
    return heads, body


def print_plan(
    found: Measured,
    predictions: Sequence[Prediction],
    chosen: Prediction,
    command: str,
    console: Console | None = None,
) -> None:
    """Print the plan."""
    console = console or Console(highlight=False)
    for name, value in facts(found).items():
        console.print(f"{name:<12}{value}", soft_wrap=True)
    heads, body = rows(predictions, chosen)
    shown = Table(box=None, pad_edge=False)
    for index, head in enumerate(heads):
        shown.add_column(head, justify="left" if index == 0 else "right")
    for row in body:
        shown.add_row(*row)
    console.print(shown)
    console.print(CAVEAT, style="dim")
    console.print(command, soft_wrap=True)


def page(
    found: Measured, predictions: Sequence[Prediction], chosen: Prediction, command: str
) -> str:
    """Return the plan as HTML that needs no network."""
    made = Page("Plan", f"<p><code>{html.escape(command)}</code></p>")
    heads, body = rows(predictions, chosen)
    made.section(
        "Measured",
        _table(["", ""], [[name, value] for name, value in facts(found).items()]),
    )
    made.section(
        "Predicted",
        _table(heads, body),
        f"<p>{html.escape(CAVEAT)}</p>",
        grid(
            [
                made.plot("Time for the run's samples", _times(predictions, chosen)),
                made.plot("Samples per second, by workers", _scaling(predictions)),
            ]
        ),
    )
    return made.render()


def _table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    inner = "".join(row(cells, "td") for cells in body)
    return f'<div class="card"><table><thead>{row(heads, "th")}</thead>{inner}</table></div>'


def _times(predictions: Sequence[Prediction], chosen: Prediction) -> Figure:
    data: list[Mapping[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [each.time_s for each in predictions],
            "y": [plain(each.name) for each in predictions],
            "marker": {"color": [colour(0 if each is chosen else 1) for each in predictions]},
            "hovertemplate": "%{y}: %{x:.4~g} s<extra></extra>",
        }
    ]
    y_axis = axis("", autorange="reversed")
    return {"data": data, "layout": layout(320, xaxis=axis("seconds"), yaxis=y_axis)}


def _scaling(predictions: Sequence[Prediction]) -> Figure:
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "name": plain(each.name),
            "x": list(each.rates),
            "y": list(each.rates.values()),
            "line": {"color": colour(place), "dash": dash(place), "width": 1.8},
            "hovertemplate": "%{y:.4~g} at %{x}",
        }
        for place, each in enumerate(predictions)
    ]
    x_axis, y_axis = axis("workers", type="log"), axis("samples/s", type="log")
    return {"data": data, "layout": layout(320, xaxis=x_axis, yaxis=y_axis)}
