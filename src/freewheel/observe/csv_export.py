"""Runs as CSV: one table of steps, one of events, one of summaries; a column names the run."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from freewheel.errors import ConfigError
from freewheel.observe.report.columns import read_lines
from freewheel.observe.report.run import Run


def write_csv(runs: Sequence[Run], directory: Path) -> list[Path]:
    """Write ``metrics.csv``, ``events.csv`` and ``runs.csv``.

    Nested values get a column of their own (``metrics.accuracy``); lists are written as JSON. A
    value that a row lacks is an empty cell.

    Args:
        runs: opened and labelled; their labels stand in the column ``run``.
        directory: made where it is missing; files of these names are replaced.

    Returns:
        The three files.

    Raises:
        ConfigError: they cannot be written.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from freewheel.observe.csv_export import write_csv
        >>> from freewheel.observe.report import open_runs
        >>> with TemporaryDirectory() as name:
        ...     run = Path(name) / "tiny"
        ...     run.mkdir()
        ...     _ = (run / "metrics.jsonl").write_text('{"process": "stage 0", "step": 1}')
        ...     metrics, _, _ = write_csv(open_runs([run]), run)
        ...     metrics.read_text(encoding="utf-8").splitlines()
        ['run,process,step', 'tiny,stage 0,1']
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        return [
            _write(directory / "metrics.csv", lambda: _lines(runs, "metrics.jsonl")),
            _write(directory / "events.csv", lambda: _lines(runs, "events.jsonl")),
            _write(directory / "runs.csv", lambda: _summaries(runs)),
        ]
    except OSError as error:
        raise ConfigError(
            f"cannot write CSV into {str(directory)!r}: {error.strerror}; give --csv DIR, a folder "
            f"that can be written to"
        ) from error


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values side by side.

    Example:
        >>> from freewheel.observe.csv_export import flat
        >>> flat({"step": 1, "metrics": {"accuracy": 0.5}, "ranks": [0, 1]})
        {'step': 1, 'metrics.accuracy': 0.5, 'ranks': '[0, 1]'}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{key}."))
        else:
            found[prefix + key] = json.dumps(value) if isinstance(value, list) else value
    return found


def _write(path: Path, rows: Callable[[], Iterable[dict[str, Any]]]) -> Path:
    """Write rows twice read: the columns are known only when all have been seen."""
    columns: dict[str, None] = {"run": None}
    for row in rows():
        columns.update(dict.fromkeys(row))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(columns))
        writer.writeheader()
        writer.writerows(rows())
    return path


def _lines(runs: Iterable[Run], name: str) -> Iterator[dict[str, Any]]:
    for run in runs:
        for row in read_lines(run.path / name):
            if row is not None:
                yield {"run": run.label, **flat(row)}


def _summaries(runs: Iterable[Run]) -> Iterator[dict[str, Any]]:
    for run in runs:
        told = flat(run.summary or {})
        yield {"run": run.label, "path": str(run.path), **told, "status": run.status}
