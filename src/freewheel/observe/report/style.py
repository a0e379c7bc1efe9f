"""How plots look: colours that the colour-blind tell apart, axes with units, text that is safe."""

from __future__ import annotations

import html
from typing import Any

Figure = dict[str, Any]

#: Okabe and Ito (2008), "Color universal design", without the yellow that is faint on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#333333")
#: Second marks beside the colour: symbols differ for every run, dashes once colours repeat.
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")

COMPUTE, WAIT, SEND, ALARM, QUIET = "#0072B2", "#E69F00", "#009E73", "#B3261E", "#5F6B7A"
PARTS = (("compute", COMPUTE), ("wait", WAIT), ("send", SEND))

INK, GRID = "#1D2733", "#E3E7EC"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def colour(index: int) -> str:
    """Return the colour of a run or a worker, by its place."""
    return PALETTE[index % len(PALETTE)]


def dash(index: int) -> str:
    """Return the dash of a run or a worker, by its place: those of one colour differ in it."""
    return DASHES[index // len(PALETTE) % len(DASHES)]


def symbol(index: int) -> str:
    """Return the marker of a run, by its place."""
    return SYMBOLS[index % len(SYMBOLS)]


def plain(text: object, limit: int = 32) -> str:
    """Return text for a plot: no markup (plotly reads some), and not too long.

    Example:
        >>> from freewheel.observe.report.style import plain
        >>> plain("<b>&")
        '&lt;b&gt;&amp;'
        >>> plain("a" * 40, limit=9)
        'aaaa…aaaa'
    """
    return html.escape(clip(str(text), limit), quote=False)


def clip(text: str, limit: int) -> str:
    """Return text with its middle left out where it is too long: names often differ at the end."""
    if len(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{text[:half]}…{text[-half:]}"


def axis(title: str, **more: Any) -> dict[str, Any]:
    """Return an axis with a title (and unit) and quiet lines."""
    return {
        "title": {"text": title, "standoff": 6, "font": {"size": 13}},
        "automargin": True,
        "gridcolor": GRID,
        "linecolor": "#AAB3BE",
        "showline": True,
        "zeroline": False,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": "#AAB3BE",
        "tickfont": {"size": 12},
        **more,
    }


def layout(height: int, **more: Any) -> dict[str, Any]:
    """Return the layout that all plots share; the legend lies above, whatever the width."""
    return {
        "height": height,
        "autosize": True,
        "margin": {"l": 8, "r": 14, "t": 4, "b": 8},
        "paper_bgcolor": "#FFFFFF",
        "plot_bgcolor": "#FFFFFF",
        "font": {"family": FONT, "size": 13, "color": INK},
        "hoverlabel": {"font": {"family": FONT, "size": 13}, "namelength": -1},
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "font": {"size": 12},
        },
        **more,
    }


def seconds(value: float) -> str:
    """Return a duration for a person.

    Example:
        >>> from freewheel.observe.report.style import seconds
        >>> seconds(0.0123), seconds(2.3283), seconds(75), seconds(4000)
        ('12.3 ms', '2.33 s', '75.0 s', '1 h 07 min')
    """
    if value < 0.1:
        return f"{value * 1e3:.3g} ms"
    if value < 10:
        return f"{value:.2f} s"
    if value < 120:
        return f"{value:.1f} s"
    if value < 3600:
        return f"{int(value) // 60} min {int(value) % 60:02d} s"
    minutes = round(value / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"
