"""``freewheel protocols`` and ``freewheel explain``."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freewheel.protocols import card_of, protocols


def protocol_table(console: Console | None = None) -> None:
    """Print a few lines a protocol, which fit a narrow terminal too."""
    console = console or Console()
    console.print("P bytes of parameters, N workers, S stages, A bytes at a cut\n", style="dim")
    for name in protocols.names():
        made: Any = protocols.get(name)
        card = made.card
        rows = Table(show_header=False, box=None, pad_edge=False)
        rows.add_column(style="dim", no_wrap=True)
        rows.add_column()
        for word, text in (
            ("  waits for", card.waits_for),
            ("  a step", f"{card.messages} messages, {card.bytes} bytes"),
            ("  a death", card.on_death),
        ):
            rows.add_row(word, escape(text))
        console.print(f"[bold]{name}[/bold] ({made.layout})")
        console.print(rows)


def explain_protocol(name: str, console: Console | None = None) -> None:
    """Print what one protocol says of itself."""
    (console or Console()).print(card_of(name), highlight=False, markup=False)
