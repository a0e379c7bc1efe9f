"""From a job to the role that does it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from torch import nn

from freewheel.config import Config
from freewheel.runtime.checkpoints.final import save_final
from freewheel.runtime.context import Context
from freewheel.runtime.job import Job
from freewheel.runtime.mail import Mail
from freewheel.runtime.pieces import Given, Pieces
from freewheel.runtime.replicas.replica import ReplicaRole
from freewheel.runtime.servers.role import ServerRole
from freewheel.runtime.servers.worker import ServerWorkerRole
from freewheel.runtime.stages.pipeline import PipelineRole
from freewheel.runtime.stopwatch import Stopwatch
from freewheel.runtime.switching.led import switches
from freewheel.runtime.switching.server import SwitchingServerRole
from freewheel.runtime.switching.worker import SwitchingWorkerRole
from freewheel.runtime.worker import Work
from freewheel.transport.base import Link

#: Roles of one process (a worker, and the server beside it) are built one after the other: building
#: a model draws on random numbers that are global.
_building = threading.Lock()


class Role(Protocol):
    """What a process of a run does."""

    module: nn.Module

    def run(self) -> dict[str, Any]:
        """Do it to the end; return this process's totals."""
        ...


_ROLES: dict[str, Callable[[Context], Role]] = {
    "stage": PipelineRole,
    "replica": ReplicaRole,
    "server": ServerRole,
    "worker": ServerWorkerRole,
}
#: In a run that goes over from replicas to servers.
_SWITCHING: dict[str, Callable[[Context], Role]] = {
    "server": SwitchingServerRole,
    "worker": SwitchingWorkerRole,
}


def members(config: Config) -> list[tuple[str, int]]:
    """Return role and rank of each process of a layout.

    Example:
        >>> from freewheel.config import Config
        >>> from freewheel.launch.roles import members
        >>> members(Config())
        [('stage', 0), ('stage', 1)]
    """
    layout = config.layout
    if layout.kind == "server":
        servers = [("server", rank) for rank in range(layout.servers)]
        return [*servers, *(("worker", rank) for rank in range(layout.workers))]
    role = "stage" if layout.kind == "pipeline" else "replica"
    return [(role, rank) for rank in range(layout.world_size)]


def work_of(given: Given) -> Work:
    """Return what a process does once all have joined.

    Args:
        given: the objects that a script handed over, if it did.
    """

    def work(job: Job, config: Config, link: Link) -> dict[str, Any]:
        run = config.run
        mail = Mail(link, Stopwatch(), run.step_timeout_s, run.join_timeout_s)
        context = Context(job, config, Pieces(config, given, job.path), mail)
        with _building:
            role = (_SWITCHING if switches(config) else _ROLES)[job.role](context)
        totals = role.run()
        saves = job.role == "stage" or (job.role in ("replica", "server") and job.rank == 0)
        if getattr(role, "saves_final", saves):
            save_final(Path(job.run_dir), job.name, role.module)
        return totals

    return work
