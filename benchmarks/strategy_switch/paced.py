"""Real processes at a set pace: every step waits for a while, that of the last worker longer."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.config import parse_config
from freewheel.launch.session import Origin, run
from freewheel.runtime.job import Job

ROOT = Path(__file__).parents[2]


class Pace(nn.Module):
    """Passes its input on, after a while where it trains."""

    def __init__(self, pace_s: float) -> None:
        super().__init__()
        self.pace_s = pace_s

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            time.sleep(self.pace_s)
        return x


def model(seed: int, workers: int, pace_s: float, factor: float) -> nn.Sequential:
    """Return an MLP for 8 x 8 images whose last worker is slower."""
    job = Job.from_environment()
    slow = job is not None and job.rank == workers - 1
    torch.manual_seed(seed)
    return nn.Sequential(
        Pace(pace_s * factor if slow else pace_s),
        nn.Flatten(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def measure(
    protocol: Mapping[str, Any], settings: Mapping[str, Any], seed: int
) -> Mapping[str, float | int | None]:
    """Train digits between real processes; return wall seconds of training, and accuracy."""
    paced = settings["paced"]
    with tempfile.TemporaryDirectory(prefix="freewheel-paced-") as folder:
        config = parse_config(
            {
                "run": {"dir": folder, "seed": seed},
                "data": {"name": "digits", "batch_size": settings["batch_size"]},
                "model": {
                    "factory": "benchmarks.strategy_switch.paced:model",
                    "seed": seed,
                    "workers": paced["workers"],
                    "pace_s": paced["pace_s"],
                    "factor": settings["factor"],
                },
                "optimizer": {
                    "name": "sgd",
                    "lr": paced["lr"],
                    "momentum": settings["momentum"],
                },
                "schedule": {"name": "steps"},
                "train": {"steps": paced["steps"]},
                "layout": {"kind": "replicas", "workers": paced["workers"]},
                "protocol": dict(protocol),
            }
        )
        _, summary = run(config, origin=Origin(path=(str(ROOT),)), quiet=True)
    return {
        "accuracy": 100 * summary["final_accuracy"],
        "wall_s": summary["wall_s"],
        "samples": summary["samples"],
        "switched_at": summary.get("switched_at"),
        "bytes_sent": summary["bytes_sent"],
    }
