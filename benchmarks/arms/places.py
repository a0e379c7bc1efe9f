"""Where the ranks of an arm run: all on loopback, or each on a host of a network lab."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from benchmarks.netlab import Counters, Netlab

ROOT = Path(__file__).parents[2]
RUN_FILE = Path(__file__).with_name("run.toml")


class Place(Protocol):
    """Where ranks run."""

    def popen(self, rank: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start one rank's command in the repository's root; text pipes for all it prints."""
        ...

    def train_command(self) -> list[str]:
        """Return what takes a TOML file and ``--set``, trains, and prints the summary as JSON."""
        ...

    def counters(self) -> Counters | None:
        """Return what all interfaces have counted so far; None where there are none."""
        ...


def _options(given: dict[str, Any]) -> dict[str, Any]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": ROOT}
    return {**pipes, **given}


class Loopback:
    """All ranks on this machine, over the loopback interface."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size

    def popen(self, rank: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start one rank's command."""
        place = {"RANK": str(rank), "WORLD_SIZE": str(self.world_size), "GLOO_SOCKET_IFNAME": "lo"}
        env = {**os.environ, "OMP_NUM_THREADS": "1", **place}
        return subprocess.Popen(list(argv), env=env, **_options(options))

    def train_command(self) -> list[str]:
        """Return ``freewheel train``."""
        return [sys.executable, "-m", "freewheel.cli.main", "train", "--json"]

    def counters(self) -> Counters | None:
        """Return None: what others send over loopback would be counted too."""
        return None


class Hosts:
    """Each rank on a host of its own; freewheel's coordinator on the host of rank 0."""

    def __init__(self, lab: Netlab) -> None:
        self.lab = lab

    def popen(self, rank: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """Start one rank's command on its host."""
        return self.lab.popen(rank, argv, env={"OMP_NUM_THREADS": "1"}, **_options(options))

    def train_command(self) -> list[str]:
        """Return ``freewheel train`` with each process on its host."""
        hosts = [f"--host={self.lab.namespace(host)}" for host in range(self.lab.hosts)]
        return [sys.executable, "-m", "benchmarks.arms.train_on_hosts", *hosts]

    def counters(self) -> Counters | None:
        """Return what the interfaces of all hosts have counted."""
        return sum(map(self.lab.counters, range(self.lab.hosts)), Counters(0, 0, 0, 0))


@contextmanager
def place(world_size: int, rate_mbit: float = 0, delay_ms: float = 0) -> Iterator[Place]:
    """Give a place for an arm: loopback when no rate is given, else a lab of its own."""
    if not rate_mbit:
        yield Loopback(world_size)
        return
    with Netlab(world_size, rate_mbit, delay_ms) as lab:
        yield Hosts(lab)
