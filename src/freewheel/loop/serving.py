"""A process, or a thread, that serves a model that a user's script made."""

from __future__ import annotations

import copy
import threading
from typing import Any

from torch import nn
from torch.optim import Optimizer

from freewheel.config import Config
from freewheel.errors import EXIT_OK
from freewheel.runtime.context import make_protocol
from freewheel.runtime.job import Job
from freewheel.runtime.links import open_link
from freewheel.runtime.mail import Mail
from freewheel.runtime.servers.server import Server
from freewheel.runtime.stopwatch import Stopwatch
from freewheel.runtime.worker import join_and_work
from freewheel.transport.base import COORDINATOR, Interrupted, Link


def serve_until_the_end(job: Job, config: Config, model: nn.Module, optimizer: Optimizer) -> int:
    """Serve until the last worker has left; return the exit code."""

    def work(job: Job, config: Config, link: Link) -> dict[str, Any]:
        mail = Mail(link, Stopwatch(), config.run.step_timeout_s)
        protocol = make_protocol(config)
        # the script's scheduler, if any, is the workers' affair: they send what it changes
        server = Server(job, config, mail, protocol, model, optimizer, lambda _: None)
        server.begins_from = "worker 0"
        return server.run()

    link = open_link(job.name, bytes.fromhex(job.run_id), config)
    try:
        link.connect({COORDINATOR: job.coordinator})
        link.interrupt_on("stop")
        return join_and_work(job, config, link, work)
    except Interrupted:
        return EXIT_OK
    finally:
        link.close()


def serve_beside(
    job: Job, config: Config, model: nn.Module, optimizer: Optimizer
) -> threading.Thread:
    """Serve in a thread beside a worker, with an optimizer and parameters of its own."""
    own = copy.deepcopy(optimizer)
    thread = threading.Thread(
        target=serve_until_the_end, args=(job, config, model, own), name=job.name, daemon=True
    )
    thread.start()
    return thread
