"""What a started process is told: who it is, where its coordinator listens, where the run lies."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

JOB_VARIABLE = "FREEWHEEL_JOB"


@dataclass(frozen=True, slots=True)
class Job:
    """One process's part of a run; handed over in an environment variable.

    Args:
        role: ``"stage"`` or ``"replica"``.
        rank: which of its role.
        run_id: 16 hexadecimal digits, in every message of the run.
        run_dir: the run folder; its ``config.toml`` is the whole configuration.
        coordinator: the address of the coordinator's link.
        path: folders to look for the user's modules in.
        call: which ``freewheel.train`` call of the user's script this run is; -1 without a script.
        earlier: run folders of the calls before it.
        began_at: when the run began, on this process's monotonic clock; filled in on joining.
        resume_from: the folder of the checkpoint to go on from; empty for a new run.

    Example:
        >>> from freewheel.runtime.job import Job
        >>> Job("stage", 1, "00" * 8, "runs/x", "tcp://127.0.0.1:1").name
        'stage 1'
    """

    role: str
    rank: int
    run_id: str
    run_dir: str
    coordinator: str
    path: Sequence[str] = ()
    call: int = -1
    earlier: Sequence[str] = ()
    began_at: float = 0.0
    resume_from: str = ""

    @property
    def name(self) -> str:
        """Role and rank, as a person sees it."""
        return f"{self.role} {self.rank}"

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable that carries this job."""
        return {JOB_VARIABLE: json.dumps(asdict(self))}

    @staticmethod
    def from_environment() -> Job | None:
        """Return this process's job, or None in a process that freewheel did not start."""
        text = os.environ.get(JOB_VARIABLE)
        return Job(**json.loads(text)) if text else None
