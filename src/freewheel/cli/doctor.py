"""``freewheel doctor``: can this machine train? With a two-process echo and an all-reduce."""

from __future__ import annotations

import os
import platform
import secrets
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import zmq
from rich.console import Console

from freewheel._version import __version__
from freewheel.config import Config, parse_config
from freewheel.errors import WorkerError
from freewheel.launch.local import LocalProcesses, threads_per_process
from freewheel.observe.board import Board
from freewheel.observe.progress import Progress
from freewheel.observe.run_folder import RunFolder
from freewheel.runtime.coordinator import Coordinator
from freewheel.runtime.job import Job
from freewheel.runtime.links import open_link
from freewheel.runtime.worker import run_worker
from freewheel.streams.finding import MissingDataError
from freewheel.streams.registry import load
from freewheel.transport.base import COORDINATOR, Link, Message
from freewheel.transport.group import Group

_ECHOES = 50
_ECHO_FLOATS = 256  # 1 KB
_REDUCED_FLOATS = 1000


def examine() -> None:
    """Print what this machine has and whether it works; end with "ready" or with what to do.

    Raises:
        WorkerError: the two processes could not talk.
    """
    console = Console(highlight=False)
    cores = len(os.sched_getaffinity(0))
    rows: dict[str, str] = {
        "freewheel": __version__,
        "python": platform.python_version(),
        "torch": f"{torch.__version__}, {_devices()}",
        "zeromq": f"{zmq.zmq_version()} (pyzmq {zmq.pyzmq_version()})",
        "cores": f"{cores}; a run of 2 processes gives {threads_per_process(2)} thread(s) to each",
        "extras": ", ".join(_extras()) or "none",
        "data": ", ".join(_data_sets()),
    }
    for name, value in rows.items():
        console.print(f"{name:<12}{value}", soft_wrap=True)
    found = _talk()
    console.print(f"{'echo':<12}{found['echo_us']:.0f} us there and back, 1 KB, two processes")
    console.print(f"{'all-reduce':<12}right, {found['reduce_us']:.0f} us for 4 KB")
    console.print("ready")


def _devices() -> str:
    if not torch.cuda.is_available():
        return "CPU only"
    return ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))


def _extras() -> list[str]:
    found = []
    for name in ("tensorboard", "pyarrow", "pillow"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return found


def _data_sets() -> list[str]:
    found = []
    for name in ("digits", "fashion_mnist", "mnist"):
        try:
            load(name)
            found.append(name)
        except MissingDataError:
            found.append(f"no {name}")
    return found


def _talk() -> dict[str, Any]:
    """Let two processes echo and all-reduce; return what the first one measured."""
    config = parse_config({"layout": {"kind": "replicas"}, "run": {"step_timeout_s": 20.0}})
    with tempfile.TemporaryDirectory(prefix="freewheel-doctor-") as folder:
        return _talk_in(Path(folder) / "run", config)


def _talk_in(path: Path, config: Config) -> dict[str, Any]:
    folder = RunFolder(path, config)
    run_id = secrets.token_bytes(8)
    link = open_link(COORDINATOR, run_id, config)
    jobs = [Job("replica", rank, run_id.hex(), str(path), link.address) for rank in range(2)]
    names = [job.name for job in jobs]
    processes = LocalProcesses(
        (sys.executable, "-m", "freewheel.cli.doctor"),
        jobs,
        {name: folder.log_path(name) for name in names},
        threads=1,
    )
    leader = Coordinator(
        link,
        names,
        processes,
        folder,
        Board(None, names),
        Progress(quiet=True),
        config,
    )
    try:
        leader.gather()
        leader.lead()
    finally:
        processes.stop()
        link.close()
        folder.close()
    return dict(leader.done["replica 0"])


def _examine_links(job: Job, _config: Config, link: Link) -> dict[str, Any]:
    """Do one process's part: echo, then all-reduce."""
    peer = f"replica {1 - job.rank}"
    payload = torch.arange(_ECHO_FLOATS, dtype=torch.float32)
    start = time.perf_counter()
    for _ in range(_ECHOES):
        if job.rank == 0:
            link.send(peer, Message("echo", (payload,)))
        heard = link.receive(kind="echo", sender=peer, timeout_s=10.0).tensors[0]
        if job.rank == 1:
            link.send(peer, Message("echo", (heard,)))
        elif not torch.equal(heard, payload):
            raise WorkerError(
                "an echo came back changed; the loopback interface is not to be trusted"
            )
    echo_us = (time.perf_counter() - start) / _ECHOES * 1e6
    group = Group(job.rank, 2, Path(job.run_dir) / "rendezvous", link.traffic, 10.0)
    start = time.perf_counter()
    flat = torch.full((_REDUCED_FLOATS,), float(job.rank + 1))
    group.sum(flat)
    reduce_us = (time.perf_counter() - start) * 1e6
    group.close()
    if not torch.equal(flat, torch.full((_REDUCED_FLOATS,), 3.0)):
        raise WorkerError("an all-reduce of 1s and 2s gave other than 3s; reinstall torch")
    return {"echo_us": echo_us, "reduce_us": reduce_us}


def _child() -> int:
    job = Job.from_environment()
    if job is None:
        raise WorkerError("this module is started by `freewheel doctor` itself")
    return run_worker(job, _examine_links)


if __name__ == "__main__":
    sys.exit(_child())
