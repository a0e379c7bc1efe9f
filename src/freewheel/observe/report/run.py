"""Opens a run folder: one that ended, failed, was killed, or still goes on."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from freewheel.errors import ConfigError
from freewheel.observe.report.columns import Columns, Floats, number, read_columns, read_lines

#: Any of these makes a folder the folder of a run.
MARKS = ("config.toml", "metrics.jsonl")


@dataclass
class Run:
    """What a run folder holds.

    Args:
        path: of the folder.
        label: a short name, unique among the runs of a page.
        config: ``config.toml``, as tables of plain values; empty where there is none.
        summary: ``summary.json``; None while the run goes on, or where it was killed.
        rows: step records.
        events: in the order of the file.
        notes: what could not be read, for the person.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from freewheel.config import Config
        >>> from freewheel.observe.run_folder import RunFolder
        >>> from freewheel.observe.report import open_run
        >>> with tempfile.TemporaryDirectory() as home:
        ...     RunFolder(Path(home) / "a", Config()).close()
        ...     run = open_run(Path(home) / "a")
        >>> run.summary is None, len(run.rows)
        (True, 0)
    """

    path: Path
    label: str
    config: dict[str, Any]
    summary: dict[str, Any] | None
    rows: Columns
    events: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)

    @property
    def status(self) -> str:
        """``"ok"``, ``"failed"`` ... as the summary says; ``"unfinished"`` without one."""
        return "unfinished" if self.summary is None else str(self.summary.get("status", "ok"))

    @property
    def error(self) -> str | None:
        """What ended the run, in words, where an error did."""
        text = (self.summary or {}).get("error")
        return None if text is None else str(text)

    @cached_property
    def virtual(self) -> bool:
        """Whether the times are a simulator's."""
        return (self.summary or {}).get("time") == "virtual" or self.rows.has("virtual_s")

    @cached_property
    def spent_s(self) -> Floats:
        """Seconds of each process up to and with each row: compute + wait + send, no evaluation."""
        if self.rows.complete("virtual_s"):
            return self.rows["virtual_s"]
        took = self.took_s
        spent = np.zeros_like(took)
        for process in range(len(self.rows.processes)):
            mine = self.rows.process == process
            spent[mine] = np.cumsum(took[mine])
        return spent

    @property
    def took_s(self) -> Floats:
        """Seconds that each row's step took."""
        rows = self.rows
        parts = (np.nan_to_num(rows[key]) for key in ("compute_s", "wait_s", "send_s"))
        total: Floats = np.sum(list(parts), axis=0, dtype=np.float64)
        return total

    @cached_property
    def at_s(self) -> Floats:
        """Seconds from the start of the run to the end of each row's step, on one clock.

        Folders of earlier versions have none: then all processes are taken to start when the last
        one has joined, and steps to follow on each other.
        """
        for key in ("virtual_s", "at_s"):
            if self.rows.complete(key):
                return self.rows[key]
        joined = [number(row.get("at_s")) for row in self.events if row.get("event") == "joined"]
        start = np.nanmax(joined) if np.isfinite(joined).any() else 0.0
        return self.spent_s + start

    @cached_property
    def sent(self) -> Floats:
        """Bytes sent by all processes up to the time of each row."""
        order = np.argsort(self.at_s, kind="stable")
        sent = np.zeros(len(self.rows))
        sent[order] = np.cumsum(np.nan_to_num(self.rows["bytes_sent"])[order])
        return sent

    def event_at_s(self, event: Mapping[str, Any]) -> float:
        """Return when an event was, on the clock of ``at_s``; NaN where that is not known."""
        virtual = number(event.get("virtual_s"))
        return virtual if self.virtual else number(event.get("at_s"))

    @cached_property
    def end_s(self) -> float:
        """The last moment of which anything is known, on the clock of ``at_s``."""
        moments = [self.event_at_s(event) for event in self.events]
        moments += [float(self.at_s.max())] if len(self.rows) else []
        finite = [moment for moment in moments if np.isfinite(moment)]
        return max(finite, default=0.0)


def open_run(path: Path) -> Run:
    """Read a run folder.

    Args:
        path: as ``freewheel train`` made it.

    Returns:
        The run, labelled with the name of its folder.

    Raises:
        ConfigError: there is no such folder, or it is not that of a run.

    Example:
        >>> from pathlib import Path
        >>> from freewheel.observe.report import open_run
        >>> open_run(Path("no/such/run"))
        Traceback (most recent call last):
            ...
        freewheel.errors.ConfigError: no run folder 'no/such/run'; ...
    """
    _check(path)
    notes: list[str] = []
    try:
        rows = read_columns(path / "metrics.jsonl")
        lines = list(read_lines(path / "events.jsonl"))
        config = _config(path / "config.toml", notes)
        summary = _summary(path / "summary.json", notes)
    except OSError as error:
        raise ConfigError(
            f"cannot read the run folder {str(path)!r}: {error.strerror} "
            f"({error.filename}); make its files readable"
        ) from error
    events = [line for line in lines if line is not None and isinstance(line.get("event"), str)]
    for name, bad in (
        ("metrics.jsonl", rows.unreadable),
        ("events.jsonl", len(lines) - len(events)),
    ):
        if bad:
            what = "1 line that is" if bad == 1 else f"{bad} lines that are"
            notes.append(f"{name} holds {what} no record (half written, or damaged); left out")
    if len(rows) == 0:
        notes.append("metrics.jsonl holds no step")
    return Run(path, path.resolve().name, config, summary, rows, events, notes)


def label_runs(runs: list[Run]) -> None:
    """Give every run a short label of its own: ``run.name``, else its folder, else with a number.

    Args:
        runs: whose labels are set.
    """
    names = [str(_table(run.config, "run").get("name") or run.path.resolve().name) for run in runs]
    folders = [run.path.resolve().name for run in runs]
    if len(set(names)) < len(runs):
        names = folders
    taken: set[str] = set()
    for run, name in zip(runs, names, strict=True):
        label, copy = name, 2
        while label in taken:
            label, copy = f"{name} ({copy})", copy + 1
        run.label = label
        taken.add(label)


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = config.get(name)
    return table if isinstance(table, Mapping) else {}


def _check(path: Path) -> None:
    """Refuse what is no run folder, and say what it is."""
    if not path.exists():
        raise ConfigError(
            f"no run folder {str(path)!r}; give a folder that freewheel train made, "
            f"such as runs/NAME-DATE"
        )
    if not path.is_dir():
        raise ConfigError(
            f"{str(path)!r} is a file, not a run folder; give the folder that it lies in"
        )
    if any((path / mark).is_file() for mark in MARKS):
        return
    inside = sorted(
        child.name for child in path.iterdir() if any((child / mark).is_file() for mark in MARKS)
    )
    if inside:
        shown = ", ".join(inside[:3]) + (" ..." if len(inside) > 3 else "")
        raise ConfigError(
            f"{str(path)!r} is not a run folder, but holds {len(inside)}: {shown}; "
            f"name those to report on, or all with {path}/*"
        )
    raise ConfigError(
        f"{str(path)!r} is not a run folder: it has neither {' nor '.join(MARKS)}; "
        f"give a folder that freewheel train made, such as runs/NAME-DATE"
    )


def _config(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append("there is no config.toml")
    except ValueError as error:  # not TOML, or not UTF-8
        notes.append(f"config.toml cannot be read: {error}")
    return {}


def _summary(path: Path, notes: list[str]) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        notes.append(f"summary.json cannot be read: {error}")
        return None
    return found if isinstance(found, dict) else None
