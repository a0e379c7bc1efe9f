"""The progress of a run on the terminal: one live line, or plain lines where there is none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from freewheel.observe.board import Board

#: Seconds between two plain lines.
PLAIN_EVERY_S = 2.0


class Progress:
    """Shows a board on stderr; stdout stays free for results.

    Args:
        quiet: show nothing.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False)
        self.quiet = quiet
        self._live: Live | None = None
        self._next_plain = 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show progress inside the block."""
        if self.quiet or not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=8, transient=True) as self._live:
            yield
        self._live = None

    def update(self, board: Board, force: bool = False) -> None:
        """Show the board as it is now."""
        if self.quiet:
            return
        if self._live is not None:
            self._live.update(Text(line(board), overflow="ellipsis", no_wrap=True))
        elif force or time.monotonic() >= self._next_plain:
            self._next_plain = time.monotonic() + PLAIN_EVERY_S
            self.say(line(board))

    def say(self, text: str) -> None:
        """Print a line above the live one."""
        if not self.quiet:
            self.console.print(Text(text), soft_wrap=True)


def line(board: Board) -> str:
    """Return the progress of a run in one line.

    Example:
        >>> from freewheel.observe.board import Board
        >>> from freewheel.observe.progress import line
        >>> line(Board(10, ["stage 0"]))
        'step 0/10  1 alive'
    """
    of = f"/{board.total_steps}" if board.total_steps else ""
    parts = [f"step {board.step}{of}"]
    if board.loss is not None:
        parts.append(f"loss {board.loss:.4f}")
        parts += [f"{name} {value:.3f}" for name, value in board.metrics.items()]
        parts.append(f"{board.samples_per_s():,.0f} samples/s")
        share, peer = board.wait_share()
        whom = f" (most for {peer})" if peer else ""
        parts.append(f"waiting {share:.0%}{whom}")
        parts.append(f"{size(board.bytes_per_step())}/step")
    parts += [f"test {name} {value:.4f}" for name, value in board.evaluated.items()]
    if board.scoring:
        parts.append("scoring the test part")
    parts.append(f"{len(board.alive)} alive")
    for name, (peer, seconds) in board.waits.items():
        parts.append(f"{name} has waited {seconds:.0f} s for {peer}")
    return "  ".join(parts)


def size(num_bytes: float) -> str:
    """Return a number of bytes for a person.

    Example:
        >>> from freewheel.observe.progress import size
        >>> size(1536), size(3)
        ('1.5 kB', '3 B')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000 or unit == "GB":
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError("unreachable")


def _short(value: object) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{k} {_short(v)}" for k, v in value.items()) + ")"
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def result_table(summary: dict[str, object], console: Console | None = None) -> None:
    """Print the summary of a run as a table on stdout."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in summary.items():
        if isinstance(value, dict):
            value = "  ".join(f"{k} {_short(v)}" for k, v in value.items())
        elif key.endswith("bytes_sent") and isinstance(value, int):
            value = f"{value:,} ({size(value)})"
        elif isinstance(value, float):
            value = f"{value:.4f}"
        table.add_row(key, "-" if value is None else str(value))
    (console or Console(highlight=False)).print(table)
