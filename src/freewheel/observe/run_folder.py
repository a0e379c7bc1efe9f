"""The run folder: resolved configuration, records, events, logs, summary.

::

    runs/NAME-DATE/
        config.toml      the configuration, resolved
        origin.json      where the user's modules are, or which script made the model
        metrics.jsonl    one line per process and step
        events.jsonl     starts, evaluations, decisions, errors
        logs/stage-0.log what the process wrote to stdout and stderr
        checkpoints/     the state on the way, for `freewheel resume`
        final/           the parameters at the end, one safetensors file per process that holds some
        summary.json     how it went; not there while the run goes on
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TextIO

import tomli_w

from freewheel.config import Config
from freewheel.errors import CheckpointError, ConfigError


class RunFolder:
    """Writes one run's files; made by the coordinator alone.

    Args:
        path: the folder, which must not hold a run yet.
        config: what to write as ``config.toml``.
        resume_at: go on with the run that the folder holds, after this step; records of later
            steps, which a crash may have left, are dropped.

    Attributes:
        evaluations: those of the run so far, where it is gone on with.

    Raises:
        ConfigError: the folder cannot be made, or another process works in it.
    """

    def __init__(self, path: Path, config: Config, resume_at: int | None = None) -> None:
        self.path = path
        self.evaluations: list[dict[str, Any]] = []
        self._start = time.monotonic()
        if resume_at is not None:
            self._lock = _lock(path)
            (path / "summary.json").unlink(missing_ok=True)
            self._write_config(config)
            self._keep_until(resume_at)
            return
        try:
            (path / "logs").mkdir(parents=True, exist_ok=False)
        except OSError as error:
            raise ConfigError(
                f"cannot make the run folder {str(path)!r}: {error.strerror}; "
                f"set run.dir to a folder that can be written to"
            ) from error
        self._lock = _lock(path)
        self._write_config(config)
        self._metrics = self._open("metrics.jsonl")
        self._events = self._open("events.jsonl")

    @classmethod
    def create(cls, config: Config) -> RunFolder:
        """Make ``run.dir/run.name-DATE``, with a number where two start in one second."""
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        base = Path(config.run.dir) / f"{config.run.name}-{stamp}"
        for attempt in range(1000):
            path = base if attempt == 0 else base.with_name(f"{base.name}-{attempt}")
            if not path.exists():
                return cls(path, config)
        raise ConfigError(f"a thousand runs are named {base}; set run.name to another name")

    def log_path(self, process: str) -> Path:
        """Return where the process of this name writes its log."""
        return self.path / "logs" / f"{process.replace(' ', '-')}.log"

    def age_s(self) -> float:
        """Return the seconds since the folder was made."""
        return time.monotonic() - self._start

    def records(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append step records."""
        self._append(self._metrics, rows)

    def event(self, kind: str, **what: Any) -> None:
        """Append an event, with the seconds since the run began."""
        row = {"event": kind, "at_s": round(self.age_s(), 4), **what}
        self._append(self._events, [row])

    def summary(self, values: Mapping[str, Any]) -> None:
        """Write ``summary.json``, whole or not at all."""
        self._write("summary.json", json.dumps(values, indent=2) + "\n")

    def origin(self, path: Sequence[str], script: str) -> None:
        """Write ``origin.json``.

        Args:
            path: folders with the user's modules.
            script: the script whose objects are trained; empty where all can be imported.
        """
        self._write("origin.json", json.dumps({"path": list(path), "script": script}) + "\n")

    def close(self) -> None:
        """Close the files, and let others work in the folder. Safe to call twice."""
        for file in (self._metrics, self._events):
            with suppress(OSError):  # a full disk: what could not be written is lost already
                file.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _append(self, file: TextIO, rows: Sequence[Mapping[str, Any]]) -> None:
        try:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
        except OSError as error:
            raise _cannot_write(Path(file.name), error) from error

    def _write(self, name: str, text: str) -> None:
        aside = self.path / f"{name}.part"
        try:
            aside.write_text(text, encoding="utf-8")
            aside.replace(self.path / name)
        except OSError as error:
            aside.unlink(missing_ok=True)
            raise _cannot_write(self.path / name, error) from error

    def _write_config(self, config: Config) -> None:
        values = config.model_dump(mode="json", exclude_none=True)
        self._write("config.toml", tomli_w.dumps(values))

    def _keep_until(self, step: int) -> None:
        rows = [row for row in read_rows(self.path / "metrics.jsonl") if row["step"] <= step]
        events = read_rows(self.path / "events.jsonl")
        self._start -= max((float(row["at_s"]) for row in events), default=0.0)
        events = [row for row in events if row["event"] != "evaluated" or row["step"] <= step]
        # whole rows only: a crash may have left half of one at the end
        self._write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        self._write("events.jsonl", "".join(json.dumps(row) + "\n" for row in events))
        self.evaluations = [row for row in events if row["event"] == "evaluated"]
        self._metrics = self._open("metrics.jsonl", "a")
        self._events = self._open("events.jsonl", "a")

    def _open(self, name: str, mode: Literal["w", "a"] = "w") -> TextIO:
        return (self.path / name).open(mode, encoding="utf-8")


def read_origin(run_dir: Path) -> tuple[list[str], str]:
    """Return what ``origin.json`` of a run says: folders with modules, and the script or ``""``."""
    try:
        values = json.loads((run_dir / "origin.json").read_text(encoding="utf-8"))
        return [str(folder) for folder in values["path"]], str(values["script"])
    except (OSError, ValueError, KeyError, TypeError):
        return [], ""


def _lock(path: Path) -> int | None:
    """Hold a folder as long as this process lives; nothing is left of it afterwards."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            f"another process trains in {str(path)!r}; wait for its end, or stop it, before the "
            f"run is gone on with"
        ) from None
    except OSError:
        os.close(handle)  # a file system without locks: it goes without
        return None
    return handle


def _cannot_write(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"cannot write {path}: {error.strerror}; checkpoints that were saved are untouched: free "
        f"some disk, then go on with `freewheel resume`"
    )


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a ``.jsonl`` file; a half-written last line is left out.

    Args:
        path: ``metrics.jsonl`` or ``events.jsonl`` of a run.
    """
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
