"""The life of one process of a run: join, work, say how it ended."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from freewheel.config import Config, load_config
from freewheel.errors import EXIT_BUG, EXIT_OK, FreewheelError, LinkTimeoutError
from freewheel.runtime.job import Job
from freewheel.runtime.links import open_link
from freewheel.runtime.memory import keep_freed_memory
from freewheel.runtime.servers.served import hosted_by
from freewheel.transport.base import COORDINATOR, TELEMETRY, Interrupted, Link, Message

#: Makes the work of a role from (job, config, link): called once all have joined.
Work = Callable[[Job, Config, Link], dict[str, Any]]


def run_worker(job: Job, work: Work) -> int:
    """Live one process's life; return its exit code.

    Args:
        job: who this process is.
        work: what it does once all have joined; returns its totals.
    """
    config = load_config(Path(job.run_dir) / "config.toml")
    _limit(config)
    keep_freed_memory()
    hosted = hosted_by(job, config)
    if hosted is None:
        return _live(job, config, work)
    beside = threading.Thread(target=_live, args=(hosted, config, work), name=hosted.name)
    beside.start()
    try:
        return _live(job, config, work)
    finally:
        beside.join()


def _live(job: Job, config: Config, work: Work) -> int:
    link = open_link(job.name, bytes.fromhex(job.run_id), config)
    try:
        link.connect({COORDINATOR: job.coordinator})
        link.interrupt_on("stop")
        return join_and_work(job, config, link, work)
    except Interrupted:
        return EXIT_OK
    finally:
        link.close()


def join_and_work(job: Job, config: Config, link: Link, work: Work) -> int:
    """Join, work, wait until all are done; return the exit code.

    Raises:
        Interrupted: the coordinator says stop.
    """
    try:
        began_at = join_run(link, config.run.join_timeout_s)
        totals = work(replace(job, began_at=began_at), config, link)
        _tell(link, "done", totals)
        # links stay open until all are done: a neighbour may still be reading
        while (
            link.receive(sender=COORDINATOR, timeout_s=config.run.step_timeout_s).kind != "finish"
        ):
            pass  # "stay", which the coordinator says while others are at work
    except Interrupted:
        raise
    except Exception as error:
        # whatever it is, the person must see it at once, with the name of this process
        text = traceback.format_exc()
        sys.stderr.write(text)
        expected = isinstance(error, FreewheelError)
        said = {
            "error": str(error) if expected else f"{type(error).__name__}: {error}",
            "kind": type(error).__name__ if expected else "",
            "traceback": text,
            "pid": os.getpid(),
            "peer": getattr(error, "peer", None),
        }
        _tell(link, "failed", said)
        return error.exit_code if isinstance(error, FreewheelError) else EXIT_BUG
    return EXIT_OK


def join_run(link: Link, timeout_s: float) -> float:
    """Learn the others' addresses; return when the run began, on this process's clock."""
    _tell(link, "hello", {"address": link.address, "pid": os.getpid()}, timeout_s)
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            welcome = link.receive(kind="welcome", sender=COORDINATOR, timeout_s=timeout_s)
            break
        except LinkTimeoutError:
            if time.monotonic() > deadline:
                raise
    peers = {name: address for name, address in welcome.meta["peers"].items() if name != link.name}
    link.connect(peers)
    return time.monotonic() - float(welcome.meta["at_s"])


def _tell(link: Link, kind: str, meta: dict[str, Any], timeout_s: float = 60.0) -> None:
    with link.traffic.counting(TELEMETRY):
        link.send(COORDINATOR, Message(kind, meta=meta), timeout_s=timeout_s)


def _limit(config: Config) -> None:
    if config.run.memory_limit_mb is not None:
        limit = config.run.memory_limit_mb * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
