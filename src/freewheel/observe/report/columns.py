"""The rows of ``metrics.jsonl`` as arrays: a run of 100,000 steps has too many rows for dicts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Columns of numbers that a row may have; one that it lacks is NaN there.
NUMBERS = (
    "step",
    "clock",
    "version",
    "staleness",
    "at_s",
    "virtual_s",
    "samples",
    "loss",
    "lr",
    "bytes_sent",
    "compute_s",
    "wait_s",
    "send_s",
)


def read_lines(path: Path) -> Iterator[dict[str, Any] | None]:
    """Yield the objects of a ``.jsonl`` file, None in place of a line that holds none.

    A run that goes on, or was killed, may leave half a line at the end.

    Args:
        path: the file; one that is missing has no lines.
    """
    if not path.is_file():
        return
    with path.open("rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:  # malformed JSON, or bytes that are not UTF-8
                row = None
            yield row if isinstance(row, dict) else None


@dataclass
class Columns:
    """Step records of all processes, a row of the file at the same index of every array.

    Attributes:
        processes: names, sorted as a person would (stage 2 before stage 10).
        process: of each row, an index into ``processes``.
        numbers: each of ``NUMBERS``, float64, NaN where a row has none.
        metrics: training metrics by name, likewise.
        peers: names of those waited for.
        wait_for: of each row, an index into ``peers``, -1 for nobody.
        unreadable: lines that held no record.
    """

    processes: list[str] = field(default_factory=list)
    process: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    numbers: dict[str, Floats] = field(default_factory=dict)
    metrics: dict[str, Floats] = field(default_factory=dict)
    peers: list[str] = field(default_factory=list)
    wait_for: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    unreadable: int = 0

    def __len__(self) -> int:
        return len(self.process)

    def __getitem__(self, name: str) -> Floats:
        """Return a column of numbers."""
        return self.numbers[name]

    def has(self, name: str) -> bool:
        """Return whether any row has this number."""
        return bool(np.isfinite(self.numbers[name]).any())

    def complete(self, name: str) -> bool:
        """Return whether there are rows, and all have this number."""
        return len(self) > 0 and bool(np.isfinite(self.numbers[name]).all())


def read_columns(path: Path) -> Columns:
    """Read ``metrics.jsonl``.

    Args:
        path: the file; a missing or empty one gives columns of length 0.

    Returns:
        The columns; rows without a process or a step are counted as unreadable.
    """
    names: dict[str, int] = {}
    peers: dict[str, int] = {}
    process: list[int] = []
    wait_for: list[int] = []
    numbers: dict[str, list[Any]] = {name: [] for name in NUMBERS}
    metrics: dict[str, list[Any]] = {}
    unreadable = 0
    for row in read_lines(path):
        if row is None or not isinstance(row.get("process"), str):
            unreadable += 1
            continue
        if not number(row.get("step")) >= 0:  # NaN, where there is none, is not
            unreadable += 1
            continue
        for name, values in numbers.items():
            values.append(row.get(name))
        found = row.get("metrics")
        if isinstance(found, Mapping):
            for name in found:
                if name not in metrics:
                    metrics[name] = [None] * len(process)
        else:
            found = {}
        for name, values in metrics.items():
            values.append(found.get(name))
        process.append(names.setdefault(row["process"], len(names)))
        peer = row.get("wait_for")
        wait_for.append(peers.setdefault(peer, len(peers)) if isinstance(peer, str) else -1)
    by_role = sorted(names, key=natural)
    place = np.zeros(len(names), np.int64)
    place[[names[name] for name in by_role]] = np.arange(len(names))
    return Columns(
        by_role,
        place[np.array(process, np.int64)] if process else np.zeros(0, np.int64),
        {name: _column(values) for name, values in numbers.items()},
        {name: _column(values) for name, values in metrics.items()},
        list(peers),
        np.array(wait_for, np.int64),
        unreadable,
    )


def number(value: object) -> float:
    """Return a JSON value as a float; NaN for what is no number.

    Example:
        >>> from freewheel.observe.report.columns import number
        >>> number(3), number(None), number("3")
        (3.0, nan, nan)
    """
    if type(value) is float:
        return value
    if type(value) is not int:
        return math.nan
    return float(value) if abs(value) < 1 << 1000 else math.nan


def _column(values: list[Any]) -> Floats:
    """Return JSON values as numbers: all at once, as they should be, else one by one."""
    try:
        return np.array(values, np.float64)  # None becomes NaN
    except (TypeError, ValueError, OverflowError):
        return np.array([number(value) for value in values], np.float64)


def natural(name: str) -> tuple[str, int]:
    """Return a key that sorts names of processes by role, then by rank.

    Example:
        >>> from freewheel.observe.report.columns import natural
        >>> sorted(["stage 10", "stage 2"], key=natural)
        ['stage 2', 'stage 10']
    """
    role, _, rank = name.rpartition(" ")
    return (role, int(rank)) if rank.isdecimal() else (name, -1)
