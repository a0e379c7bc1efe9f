"""Starts the processes of a run on this machine, and leaves none behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from freewheel.launch import guard
from freewheel.runtime.job import Job


def threads_per_process(num_processes: int, asked: int | None = None) -> int:
    """Return how many threads each process computes with: cores / processes, at least 1.

    Args:
        num_processes: processes that compute at the same time.
        asked: ``run.threads``, which goes before.

    Example:
        >>> from freewheel.launch.local import threads_per_process
        >>> threads_per_process(10**6), threads_per_process(2, asked=3)
        (1, 3)
    """
    cores = len(os.sched_getaffinity(0))
    return asked or max(1, cores // num_processes)


class Exit(NamedTuple):
    """A process that is no more."""

    name: str
    pid: int
    code: int  # negative: the signal that ended it

    def __str__(self) -> str:
        how = f"died (signal {-self.code})" if self.code < 0 else f"exited with code {self.code}"
        return f"{self.name} (pid {self.pid}) {how}"


class LocalProcesses:
    """The child processes of one run.

    Args:
        argv: the command that every child runs; its job tells it who it is.
        jobs: one a process.
        logs: where each process's stdout and stderr go, by name.
        threads: threads that each computes with.
    """

    def __init__(
        self,
        argv: Sequence[str],
        jobs: Sequence[Job],
        logs: Mapping[str, Path],
        threads: int,
    ) -> None:
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._reported: set[str] = set()
        try:
            for job in jobs:
                self._children[job.name] = _start(argv, job, logs[job.name], threads)
        except BaseException:
            self.stop(grace_s=0.0)
            raise

    def pids(self) -> dict[str, int]:
        """Return the process id of each process by name."""
        return {name: child.pid for name, child in self._children.items()}

    def alive(self) -> list[str]:
        """Return the names of the processes that still run."""
        return [name for name, child in self._children.items() if child.poll() is None]

    def exits(self) -> list[Exit]:
        """Return the processes that have ended since the last call."""
        ended = []
        for name, child in self._children.items():
            code = child.poll()
            if code is not None and name not in self._reported:
                self._reported.add(name)
                ended.append(Exit(name, child.pid, code))
        return ended

    def stop(self, grace_s: float = 3.0) -> None:
        """Wait at most ``grace_s`` for all to end; then SIGTERM, then SIGKILL. None is left."""
        ends = (
            (None, grace_s),
            (subprocess.Popen.terminate, min(grace_s, 0.5)),
            (subprocess.Popen.kill, 5.0),
        )
        for signal_it, wait_s in ends:
            for child in self._children.values():
                if signal_it is not None and child.poll() is None:
                    signal_it(child)
            deadline = time.monotonic() + wait_s
            for child in self._children.values():
                try:
                    child.wait(max(0.01, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue
            if not self.alive():
                return


def _start(argv: Sequence[str], job: Job, log: Path, threads: int) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **job.to_environment(),
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
    }
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-IS", guard.__file__, str(os.getpid()), *argv],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
