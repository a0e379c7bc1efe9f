"""Runs that are done: a line each in ``units.jsonl``, found again when a command is restarted."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from freewheel.config import Config

Status = Literal["ok", "diverged", "crashed", "interrupted"]


@dataclass(frozen=True)
class Unit:
    """One run of a comparison.

    Args:
        key: of its configuration; the same configuration is never run twice.
        arm: name.
        what: ``"train"``, or what else it was run for.
        seed: of the run.
        status: how it ended.
        error: why it did not end well.
        measured: see ``measure``.
        load: load average over the minute before.
        took_s: from start to end.
        run: its folder, where that is kept.
    """

    key: str
    arm: str
    what: str
    seed: int
    status: Status
    error: str | None = None
    measured: Mapping[str, Any] = field(default_factory=dict)
    load: float = 0.0
    took_s: float = 0.0
    run: str | None = None


def key_of(config: Config) -> str:
    """Return 16 hexadecimal digits that stand for a configuration, where it is run aside.

    Example:
        >>> from freewheel.compare.units import key_of
        >>> from freewheel.config import parse_config
        >>> a = key_of(parse_config({"run": {"seed": 1, "dir": "here"}}))
        >>> a == key_of(parse_config({"run": {"seed": 1, "dir": "there"}}))
        True
        >>> a == key_of(parse_config({"run": {"seed": 2}}))
        False
    """
    # without defaults, so that a setting which is new in freewheel leaves old runs done
    values = config.model_dump(mode="json", exclude_defaults=True)
    values["run"] = {k: v for k, v in values.get("run", {}).items() if k not in ("dir", "name")}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


class Units:
    """The finished runs of a comparison.

    Args:
        path: the file; later lines of one key go before earlier ones.
        retry_failed: forget the runs that diverged or crashed.

    Runs that were interrupted count as not done.
    """

    def __init__(self, path: Path, retry_failed: bool = False) -> None:
        self._path = path
        self._retry = retry_failed
        self._found = {unit.key: unit for unit in _read(path)}

    def __len__(self) -> int:
        return sum(self.done(key) is not None for key in self._found)

    def done(self, key: str) -> Unit | None:
        """Return the run of this key if it need not be run again."""
        unit = self._found.get(key)
        if unit is None or unit.status == "interrupted" or (self._retry and unit.status != "ok"):
            return None
        return unit

    def get(self, key: str) -> Unit | None:
        """Return the run of this key, however it ended."""
        return self._found.get(key)

    def put(self, unit: Unit) -> None:
        """Append a run to the file, safe on disk when this returns."""
        self._found[unit.key] = unit
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b") as file:
            file.seek(max(file.tell() - 1, 0))
            cut_short = file.read(1) not in (b"", b"\n")
            file.write(b"\n" * cut_short + json.dumps(asdict(unit)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _read(path: Path) -> Iterator[Unit]:
    with suppress(FileNotFoundError):
        for line in path.read_text(encoding="utf-8").splitlines():
            # a line cut short by a kill is a run that was not finished
            with suppress(json.JSONDecodeError, TypeError):
                yield Unit(**json.loads(line))
