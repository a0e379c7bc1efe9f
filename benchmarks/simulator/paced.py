"""A loss that takes its time: workers of equal or unequal pace, however many share the cores."""

from __future__ import annotations

import os
import time

from torch import Tensor
from torch.nn import functional

from freewheel.runtime.job import Job

#: Milliseconds of each worker's sleep, separated by commas.
PACES = "BENCH_PACES_MS"


def loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy, after a sleep that a worker's environment names."""
    job = Job.from_environment()
    if job is not None and job.name.startswith(("worker", "replica")):
        time.sleep(1e-3 * float(os.environ[PACES].split(",")[job.rank]))
    return functional.cross_entropy(output, targets)
