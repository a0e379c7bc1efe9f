"""The table on the terminal: in one piece where it fits, else learning first, then costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from freewheel.compare.cells import Column, columns, groups, notes
from freewheel.compare.table import Table

#: Names of arms up to so many characters are not wrapped.
_ARM_WIDTH = 28
_STYLES = {"vanilla": "bold", "arm": "bold cyan", "control": "", "floor": "dim"}


def show(table: Table, folder: Path, console: Console | None = None) -> None:
    """Print the table, its notes, and where the files are.

    Args:
        table: to print.
        folder: of its files.
        console: where to; stdout by default.
    """
    console = console or Console(highlight=False)
    found = columns(table)
    whole = _made(table, found[0], found[1:], full_heads=True)
    if _width(console, whole) <= console.width:
        console.print(whole)
    else:
        for some in groups(found):
            made = _made(table, found[0], some)
            made.title, made.title_justify = some[0].group if some[0].over else None, "left"
            console.print(made)
            console.print()
    for note in notes(table):
        console.print(Text(f"- {note}"))
    console.print(Text(f"- {folder}: results.html, results.md, results.csv, results.json"))


def _width(console: Console, table: RichTable) -> int:
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def _made(
    table: Table, arms: Column, found: Sequence[Column], full_heads: bool = False
) -> RichTable:
    made = RichTable(box=None, pad_edge=False, header_style="dim", padding=(0, 2))
    made.add_column(
        arms.head, min_width=min(max(map(len, arms.cells)), _ARM_WIDTH), overflow="fold"
    )
    for column in found:
        head = column.full_head if full_heads else column.head
        made.add_column(head, justify="right", overflow="fold")
    for index, row in enumerate(table.rows):
        style = _STYLES[row.arm.kind]
        if row.num_ok < row.num_seeds:
            style += " red"
        cells = (Text(column.cells[index]) for column in (arms, *found))
        made.add_row(*cells, style=style)
    return made
