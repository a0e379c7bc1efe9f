"""A model that kills the process of one role and rank in a given forward."""

from __future__ import annotations

import os
import signal

import torch
from torch import Tensor, nn

from freewheel.runtime.job import Job


class Dies(nn.Module):
    """Sends its process SIGKILL in its ``at``-th forward, in the process of that name only."""

    def __init__(self, role: str, rank: int, at: int) -> None:
        super().__init__()
        self.role, self.rank, self.at, self.calls = role, rank, at, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        job = Job.from_environment()
        mine = job is not None and job.role == self.role and self.rank in (job.rank, -1)
        if mine and self.calls == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return x


def model(role: str, rank: int, at: int) -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Dies(role, rank, at), nn.Linear(8, 3))
