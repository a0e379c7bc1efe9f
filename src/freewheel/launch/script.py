"""Starts a user's script as the workers and servers of a run, on this machine."""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from freewheel.config import Config
from freewheel.errors import ConfigError, StoppedError, WorkerError
from freewheel.launch.lead import lead_script
from freewheel.launch.local import LocalProcesses, threads_per_process
from freewheel.launch.roles import members
from freewheel.launch.signals import StopSignals
from freewheel.observe.progress import Progress
from freewheel.observe.run_folder import RunFolder
from freewheel.runtime.job import Job
from freewheel.runtime.links import open_link
from freewheel.runtime.servers.served import processes_of
from freewheel.transport.base import COORDINATOR

#: How often logs and ended processes are looked at.
_POLL_S = 0.1


def launch_script(
    config: Config,
    script: Path,
    arguments: Sequence[str],
    echo: Callable[[str], None],
    quiet: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Run a script that calls ``freewheel.join`` in several processes, to the end of all.

    Args:
        config: of layout ``"server"``.
        script: what each process runs.
        arguments: of the script.
        echo: is given each line that a worker prints, behind its name.
        quiet: show no progress.

    Returns:
        The run folder and the summary.

    Raises:
        FreewheelError: what went wrong.
        StoppedError: a person stopped it.
    """
    if not script.is_file():
        raise ConfigError(f"there is no script {str(script)!r}; give the path of a Python file")
    names = [f"{role} {rank}" for role, rank in members(config)]
    threads = threads_per_process(len(names), config.run.threads)
    progress = Progress(quiet)
    with StopSignals() as signals:
        run_id = secrets.token_bytes(8)
        link = open_link(COORDINATOR, run_id, config)
        folder = RunFolder.create(config)
        progress.say(
            f"{folder.path}: {script.name} as {config.layout.workers} workers, "
            f"{config.layout.servers} servers, {config.protocol_name}"
        )
        jobs = [
            Job(role, rank, run_id.hex(), str(folder.path.resolve()), link.address)
            for role, rank in members(config)
            if f"{role} {rank}" in processes_of(names, config)
        ]
        logs = {job.name: folder.log_path(job.name) for job in jobs}
        command = (sys.executable, str(script), *arguments)
        processes = LocalProcesses(command, jobs, logs, threads)
        workers = {name: path for name, path in logs.items() if name.startswith("worker")}
        with _Lines(workers, echo):
            try:
                summary = lead_script(
                    config, folder, link, processes, progress, signals.asked, threads
                )
                _wait(processes, signals)
            finally:
                with signals.held():
                    processes.stop()
        if summary["status"] == "interrupted":
            raise StoppedError(f"stopped at step {summary['steps']}")
        return folder.path, summary


def _wait(processes: LocalProcesses, signals: StopSignals) -> None:
    """Let scripts do what they do after training; raise where one fails at it."""
    while processes.alive() and not signals.asked():
        time.sleep(_POLL_S)
    for gone in processes.exits():
        if gone.code > 0:
            raise WorkerError(f"{gone} after training; see its log")


class _Lines:
    """Shows what processes write to their logs, line by line."""

    def __init__(self, logs: Mapping[str, Path], echo: Callable[[str], None]) -> None:
        self._logs, self._echo = logs, echo
        self._files: dict[str, TextIO] = {}
        self._rest: dict[str, str] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lines", daemon=True)

    def __enter__(self) -> _Lines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        for file in self._files.values():
            file.close()

    def _run(self) -> None:
        while not self._done.wait(_POLL_S):
            self._look()
        self._look()

    def _look(self) -> None:
        for name, path in self._logs.items():
            if name not in self._files:
                if not path.exists():
                    continue
                self._files[name] = path.open(encoding="utf-8", errors="replace")
            text = self._rest.pop(name, "") + self._files[name].read()
            *lines, self._rest[name] = text.split(os.linesep)
            for line in lines:
                self._echo(f"[{name}] {line}")
