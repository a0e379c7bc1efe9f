"""A model that makes one worker of a switching run kill itself in a phase of the hand-over."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from torch import nn

import factories
from freewheel.runtime.job import Job
from freewheel.runtime.servers.exchange import Exchange
from freewheel.runtime.switching.worker import SwitchingWorkerRole

#: What each phase is the beginning of: a class, one of its methods, and which call of it.
PHASES: dict[str, tuple[type[Any], str, int]] = {
    "saving": (SwitchingWorkerRole, "_hand_over", 1),
    "saved": (SwitchingWorkerRole, "_wait_for_all", 1),
    "ready": (Exchange, "begin", 1),
    "serving": (Exchange, "step_done", 2),
}


def model(phase: str, rank: int, once: str) -> nn.Module:
    """Return a small model; worker ``rank`` gets SIGKILL in ``phase``, if ``once`` is not there."""
    job = Job.from_environment()
    if job is not None and (job.role, job.rank) == ("worker", rank) and not Path(once).exists():
        kind, method, at = PHASES[phase]
        whole, calls = getattr(kind, method), [0]

        def dies(self: Any, *args: Any, **how: Any) -> Any:
            calls[0] += 1
            if calls[0] == at:
                if phase == "saved":
                    whole(self, *args, **how)
                Path(once).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return whole(self, *args, **how)

        setattr(kind, method, dies)
    return factories.small_model()
