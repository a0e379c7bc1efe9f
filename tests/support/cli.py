"""Runs the ``freewheel`` command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

SUPPORT = Path(__file__).resolve().parent
ROOT = SUPPORT.parent.parent


def environment() -> dict[str, str]:
    """Return the environment in which children find the factories of tests."""
    return {**os.environ, "PYTHONPATH": str(SUPPORT), "PYTHONWARNINGS": "error"}


def freewheel(
    *arguments: str, cwd: Path | None = None, timeout_s: float = 100.0
) -> subprocess.CompletedProcess[str]:
    """Run ``freewheel ARGUMENTS`` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "freewheel.cli.main", *arguments],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def start(*arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start ``freewheel ARGUMENTS``."""
    return subprocess.Popen(
        [sys.executable, "-m", "freewheel.cli.main", *arguments],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def sets(**values: Any) -> list[str]:
    """Return ``--set`` options: ``sets(train__steps=3)``."""
    options = []
    for key, value in values.items():
        text = json.dumps(value) if not isinstance(value, bool) else str(value).lower()
        options += ["--set", f"{key.replace('__', '.')}={text}"]
    return options


def write_config(path: Path, text: str = "") -> Path:
    """Write a small run of two stages over ``factories``."""
    path.write_text(
        text
        or """
[data]
factory = "factories:small_data"
batch_size = 8
[model]
factory = "factories:small_model"
[train]
steps = 6
"""
    )
    return path


def tree_of(pid: int) -> list[psutil.Process]:
    """Return the process and all below it."""
    parent = psutil.Process(pid)
    return [parent, *parent.children(recursive=True)]


def all_gone(processes: Iterable[psutil.Process], timeout_s: float = 5.0) -> list[psutil.Process]:
    """Wait for processes to end; return those that did not."""
    _, alive = psutil.wait_procs(list(processes), timeout=timeout_s)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def run_folder(directory: Path) -> Path:
    """Return the one run folder in ``directory``."""
    (folder,) = [path for path in directory.iterdir() if (path / "config.toml").exists()]
    return folder
