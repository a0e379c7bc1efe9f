"""Puts sections and plots into one HTML file that needs no network.

A content security policy lets the browser run our two scripts alone, known by their hashes, and
load nothing: what is in a run folder cannot become code, and opening a report tells nobody.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

from freewheel.observe.report.style import Figure


@dataclass
class Page:
    """A page under construction.

    Args:
        title: plain text.
        lead: HTML below the title.

    Example:
        >>> from freewheel.observe.report.page import Page
        >>> page = Page("Runs", "")
        >>> page.section("Nothing", "<p>yet</p>")
        >>> "<h2>Nothing</h2>" in page.render()
        True
    """

    title: str
    lead: str
    figures: dict[str, Figure] = field(default_factory=dict)
    _sections: list[str] = field(default_factory=list)

    def section(self, title: str, *parts: str) -> None:
        """Append a section of HTML parts."""
        self._sections.append(f"<section><h2>{html.escape(title)}</h2>{''.join(parts)}</section>")

    def plot(self, title: str, figure: Figure) -> str:
        """Take a plot in; return the HTML of its place.

        Args:
            title: HTML above it.
            figure: ``data`` and ``layout`` of plotly, and ``axes`` where its x axis is switched.
        """
        key = f"f{len(self.figures)}"
        self.figures[key] = figure
        height = int(figure["layout"]["height"])
        return (
            f'<figure class="card"><figcaption>{title}</figcaption>'
            f'<div class="plot" data-figure="{key}" style="height:{height}px"></div></figure>'
        )

    def render(self) -> str:
        """Return the page."""
        from plotly.offline import get_plotlyjs

        library, script = get_plotlyjs(), _asset("page.js")
        allowed = " ".join(_hash(text) for text in (library, script))
        policy = (
            f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
            f"img-src data: blob:; base-uri 'none'; form-action 'none'"
        )
        # "<" could end the element, whatever the text around it
        data = json.dumps(self.figures, separators=(",", ":"), allow_nan=False)
        data = data.replace("<", "\\u003c")
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<link rel="icon" href="data:,">\n'
            f"<title>{html.escape(self.title)}</title>\n<style>{_asset('page.css')}</style>\n"
            f"</head><body><header><h1>{html.escape(self.title)}</h1>{self.lead}</header>\n"
            "<noscript><p>The plots need JavaScript; the tables do not.</p></noscript>\n"
            f"<main>{''.join(self._sections)}</main>\n"
            f'<script type="application/json" id="figures">{data}</script>\n'
            f"<script>{library}</script>\n<script>{script}</script>\n</body></html>\n"
        )


def grid(parts: Sequence[str]) -> str:
    """Return cards side by side, as many as the width has room for."""
    return f'<div class="grid">{"".join(parts)}</div>'


def _asset(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
