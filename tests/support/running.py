"""A ``freewheel`` command that runs, and is watched until something is seen."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from safetensors.torch import load_file
from torch import Tensor

from cli import all_gone, environment, run_folder, tree_of
from freewheel.observe.run_folder import read_rows

#: How long to wait for something that will be seen, on a machine that is busy.
PATIENCE_S = 100.0


class Running:
    """Starts ``freewheel ARGUMENTS`` with a folder of its own for temporary files."""

    def __init__(self, *arguments: str, cwd: Path) -> None:
        self.temporary = cwd / "temporary"
        self.temporary.mkdir(exist_ok=True)
        self.shared: set[Path] = set()
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "freewheel.cli.main", *arguments],
            cwd=cwd,
            env={**environment(), "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.text = ""
        self.family: list[psutil.Process] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.text += line

    def until(self, seen: Callable[[], Any]) -> Any:
        """Wait for what ``seen`` returns to be true."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := seen()):
            assert self.popen.poll() is None, f"it ended before: {self.text}"
            assert time.monotonic() < deadline, f"not seen: {self.text}"
            time.sleep(0.01)
        self.family = tree_of(self.popen.pid)
        for process in self.family:
            files = [Path(m.path) for m in process.memory_maps()]
            self.shared |= {file for file in files if file.is_relative_to("/dev/shm")}
        return found

    def until_said(self, pattern: str) -> re.Match[str]:
        found: re.Match[str] = self.until(lambda: re.search(pattern, self.text))
        return found

    def ctrl_c(self) -> None:
        """Send SIGINT to the whole group, as a terminal does."""
        os.killpg(self.popen.pid, signal.SIGINT)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        code = self.popen.wait(timeout_s)
        self._reader.join(5.0)
        for pipe in (self.popen.stdout, self.popen.stderr):
            assert pipe is not None
            pipe.close()
        return code

    def end(self) -> None:
        """End what a failed test left."""
        if self.popen.poll() is None:
            self.popen.kill()
        self.wait()

    def left_behind(self) -> list[Any]:
        """Return what is still there 5 s after the end: processes, shared memory, files."""
        alive = all_gone(self.family)
        # PyTorch keeps an empty folder for a cache, whatever is trained
        files = [f for f in self.temporary.iterdir() if not f.name.startswith("torchinductor_")]
        return [*alive, *filter(Path.exists, self.shared), *files]


def final_of(run_dir: Path) -> dict[str, Tensor]:
    """Return all parameters and buffers at the end of a run."""
    files = sorted((run_dir / "final").iterdir())
    return {name: value for file in files for name, value in load_file(file).items()}


def curve(run_dir: Path) -> dict[tuple[str, int], tuple[Any, Any]]:
    """Return loss and learning rate by process and step."""
    rows = read_rows(run_dir / "metrics.jsonl")
    assert len({(row["process"], row["step"]) for row in rows}) == len(rows), "each step once"
    return {(row["process"], row["step"]): (row["loss"], row["lr"]) for row in rows}


def summary_of(run_dir: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return values


def only_run(directory: Path) -> Path:
    return run_folder(directory / "runs")
