"""Runs the roles of a layout as threads of this process, over in-process links: fast and exact."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from freewheel.config import Config, parse_config
from freewheel.errors import LinkTimeoutError
from freewheel.runtime.checkpoints.saves import Saves
from freewheel.runtime.context import Context
from freewheel.runtime.job import Job
from freewheel.runtime.mail import Mail
from freewheel.runtime.pieces import Given, Pieces
from freewheel.runtime.replicas.replica import ReplicaRole
from freewheel.runtime.stages.pipeline import PipelineRole
from freewheel.runtime.stopwatch import Stopwatch
from freewheel.transport.base import COORDINATOR, Message
from freewheel.transport.inproc import InprocHub


@dataclass
class Outcome:
    """What a run in threads left behind."""

    state: dict[str, Any] = field(default_factory=dict)
    totals: list[dict[str, Any]] = field(default_factory=list)
    told: list[Message] = field(default_factory=list)
    roles: list[Any] = field(default_factory=list)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for m in self.told if m.kind == "records" for row in m.meta["rows"]]

    @property
    def losses(self) -> list[float]:
        return [row["loss"] for row in self.rows if row["loss"] is not None]

    @property
    def scores(self) -> list[dict[str, float]]:
        return [dict(m.meta["metrics"]) for m in self.told if m.kind == "evaluated"]


def run_pipeline(
    given: Given,
    timeout_s: float = 100.0,
    *,
    run_dir: Path = Path("unused"),
    resume_from: Path | None = None,
    **sections: Any,
) -> Outcome:
    """Train a pipeline to its end; raise what a stage raised.

    With ``checkpoint.every`` in the sections, checkpoints are published under ``run_dir``.
    """
    config: Config = parse_config(sections)
    names = [f"stage {i}" for i in range(config.layout.stages)]
    return _run(config, names, PipelineRole, given, timeout_s, run_dir, resume_from)


def run_replicas(
    given: Given,
    timeout_s: float = 100.0,
    *,
    run_dir: Path = Path("unused"),
    resume_from: Path | None = None,
    **sections: Any,
) -> Outcome:
    """Train replicas to their end, their collectives made by a barrier between the threads."""
    config: Config = parse_config(sections)
    names = [f"replica {i}" for i in range(config.layout.workers)]
    shared = _Shared(len(names), timeout_s)
    with patch(
        "freewheel.runtime.replicas.replica.Group", lambda rank, *_: ThreadGroup(rank, shared)
    ):
        return _run(config, names, ReplicaRole, given, timeout_s, run_dir, resume_from)


class _Shared:
    def __init__(self, world_size: int, timeout_s: float) -> None:
        self.barrier = threading.Barrier(world_size, timeout=timeout_s)
        self.tensors: list[Tensor] = [torch.empty(0)] * world_size


class ThreadGroup:
    """The collectives of ``transport.group.Group`` between threads."""

    def __init__(self, rank: int, shared: _Shared) -> None:
        self.rank, self.world_size = rank, len(shared.tensors)
        self._shared = shared

    def sum(self, flat: Tensor) -> None:
        self._replace(flat, lambda all_of: torch.stack(all_of).sum(0))

    def max(self, flat: Tensor) -> None:
        self._replace(flat, lambda all_of: torch.stack(all_of).amax(0))

    def broadcast(self, flat: Tensor) -> None:
        self._replace(flat, lambda all_of: all_of[0])

    def close(self) -> None:
        self._shared.barrier.abort()

    def _replace(self, flat: Tensor, reduce: Callable[[list[Tensor]], Tensor]) -> None:
        self._shared.tensors[self.rank] = flat.clone()
        self._shared.barrier.wait()
        flat.copy_(reduce(self._shared.tensors))
        self._shared.barrier.wait()


def _run(
    config: Config,
    names: list[str],
    make: Callable[[Context], Any],
    given: Given,
    timeout_s: float,
    run_dir: Path,
    resume_from: Path | None,
) -> Outcome:
    hub = InprocHub()
    links = {name: hub.link(name) for name in [COORDINATOR, *names]}
    addresses = {name: link.address for name, link in links.items()}
    for link in links.values():
        link.connect({name: a for name, a in addresses.items() if name != link.name})
        link.interrupt_on("stop")
    outcome, errors = Outcome(), []
    for rank, name in enumerate(names):
        job = Job(
            name.split()[0],
            rank,
            "00" * 8,
            str(run_dir),
            addresses[COORDINATOR],
            resume_from=str(resume_from or ""),
        )
        mail = Mail(links[name], Stopwatch(), timeout_s)
        outcome.roles.append(make(Context(job, config, Pieces(config, given), mail)))

    def work(role: Any) -> None:
        try:
            outcome.totals.append(role.run())
        except Exception as error:
            errors.append(error)
            for name in names:
                if name != role.mail.link.name:
                    role.mail.link.send(name, Message("stop"))

    saves = Saves(run_dir / "checkpoints", config, names)
    threads = [
        threading.Thread(target=work, args=(role,), name=role.mail.link.name)
        for role in outcome.roles
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    while True:
        # as the coordinator does, so that nobody waits for its queue
        alive = any(thread.is_alive() for thread in threads)
        try:
            message = links[COORDINATOR].receive(timeout_s=0.02 if alive else 0.0)
        except LinkTimeoutError:
            if not alive:
                break
            if time.monotonic() > deadline:
                faulthandler.dump_traceback()
                raise AssertionError("a process hangs") from None
            continue
        outcome.told.append(message)
        if message.kind == "saved":
            saves.take(message.sender, message.meta["step"], message.meta["files"])
    for link in links.values():
        link.close()
    if errors:
        raise errors[0]
    assert saves.error is None
    for role in outcome.roles:
        outcome.state.update(role.module.state_dict())
    return outcome
