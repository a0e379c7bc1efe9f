"""``arrivals.jsonl`` in the run folder: what a central machine was told, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from freewheel.errors import DataError
from freewheel.protocols.arrivals import from_row, to_row
from freewheel.protocols.base import CentralEvent

#: So many events are kept before they are written.
_BATCH = 256


class ArrivalsFile:
    """Writes the events of one server.

    Args:
        run_dir: the run folder.
        server: which server tells; its file is ``arrivals.jsonl``, or ``arrivals-S.jsonl``.
        wanted: False writes nothing.
    """

    def __init__(self, run_dir: Path, server: int, wanted: bool) -> None:
        self._path = arrivals_path(run_dir, server) if wanted else None
        self._kept: list[CentralEvent] = []

    def add(self, event: CentralEvent) -> None:
        """Note an event."""
        if self._path is not None:
            self._kept.append(event)
            if len(self._kept) >= _BATCH:
                self.flush()

    def flush(self) -> None:
        """Write what is kept."""
        if self._path is not None and self._kept:
            text = "".join(json.dumps(to_row(event)) + "\n" for event in self._kept)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(text)
            self._kept = []


def arrivals_path(run_dir: Path, server: int = 0) -> Path:
    """Return where the events of a server lie."""
    return run_dir / ("arrivals.jsonl" if server == 0 else f"arrivals-{server}.jsonl")


def read_arrivals(run_dir: Path, server: int = 0) -> Iterator[CentralEvent]:
    """Yield the recorded events of a run, for ``freewheel.simulate.replay``.

    Raises:
        DataError: the run has no record, or a row is not an event.
    """
    path = arrivals_path(run_dir, server)
    if not path.exists():
        raise DataError(
            f'{str(run_dir)!r} has no record of arrivals; only runs with layout.kind = "server" '
            "have one"
        )
    for line in path.read_text(encoding="utf-8").splitlines():
        yield from_row(json.loads(line))
