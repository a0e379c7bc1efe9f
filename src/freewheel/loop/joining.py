"""``freewheel.join``: makes a training loop one of several, however its processes were started."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path

from torch import nn
from torch.optim import Optimizer

from freewheel.config import Config, load_config
from freewheel.loop.serving import serve_beside, serve_until_the_end
from freewheel.loop.session import Joined, JoinedWorker
from freewheel.loop.torchrun import meet
from freewheel.runtime.job import Job
from freewheel.runtime.links import open_link
from freewheel.runtime.mail import Mail
from freewheel.runtime.servers.served import hosted_by
from freewheel.runtime.stopwatch import Stopwatch
from freewheel.runtime.worker import join_run
from freewheel.transport.base import COORDINATOR


def join(model: nn.Module, optimizer: Optimizer) -> Joined:
    """Join the run that this process was started for; alone, change nothing.

    Under ``freewheel launch`` the settings are those of its command line; under ``torchrun`` all
    ranks are workers, servers run as threads beside the first of them, and settings come from the
    environment variable ``FREEWHEEL_SET``: ``"protocol.name=ssp protocol.staleness=3"``. A process
    that was started as a server serves here, and ends without returning.

    All workers begin with rank 0's parameters and buffers.

    Args:
        model: its parameters and buffers travel; those without a gradient stay as they are.
        optimizer: of the model's parameters; servers run it, or, where the protocol lets workers
            train by themselves, each worker does.

    Returns:
        The loop's part in the run, with the optimizer to use from here on.

    Raises:
        ConfigError: a setting is wrong, or the optimizer cannot run on servers.
        LinkTimeoutError: the coordinator could not be reached in time.

    Example:
        >>> import torch, freewheel
        >>> model = torch.nn.Linear(2, 1)
        >>> run = freewheel.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        >>> run.rank, run.world_size, type(run.optimizer).__name__
        (0, 1, 'SGD')
    """
    job = Job.from_environment()
    threads: list[threading.Thread] = []
    if job is None:
        job = meet(threads)
    if job is None:
        return Joined(optimizer)
    config = load_config(Path(job.run_dir) / "config.toml")
    if job.role == "server":
        sys.exit(serve_until_the_end(job, config, model, optimizer))
    hosted = hosted_by(job, config)
    if hosted is not None:
        threads.append(serve_beside(hosted, config, model, optimizer))
    return _work(job, config, model, optimizer, threads)


def _work(
    job: Job,
    config: Config,
    model: nn.Module,
    optimizer: Optimizer,
    threads: list[threading.Thread],
) -> Joined:
    link = open_link(job.name, bytes.fromhex(job.run_id), config)
    try:
        link.connect({COORDINATOR: job.coordinator})
        link.interrupt_on("stop")
        began_at = join_run(link, config.run.join_timeout_s)
    except BaseException:
        link.close(0)
        raise
    mail = Mail(link, Stopwatch(), config.run.step_timeout_s)

    def after() -> None:
        link.close()
        for thread in threads:
            thread.join()

    return JoinedWorker(replace(job, began_at=began_at), config, mail, model, optimizer, after)
