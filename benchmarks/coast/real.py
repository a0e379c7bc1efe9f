"""The same run in processes of its own, over a shaped link: wall time and bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import tomli_w

from benchmarks.coast.runs import Sections
from benchmarks.harness import Metrics

_TIMEOUT_S = 900.0


def run(sections: Sections, seed: int, rate_mbit: float, delay_ms: float) -> Metrics:
    """Train once with ``freewheel train``; return accuracy, bytes and wall time.

    Args:
        sections: of a run file.
        seed: of the initial parameters and of the order of samples.
        rate_mbit: of the shaped link, each way.
        delay_ms: one-way.

    Raises:
        RuntimeError: the command failed.
    """
    with tempfile.TemporaryDirectory(prefix="freewheel-") as folder:
        file = Path(folder) / "run.toml"
        own = {"dir": folder, "seed": seed, "threads": 1}
        link = {"rate_mbit": rate_mbit, "delay_ms": delay_ms}
        file.write_text(tomli_w.dumps({**sections, "run": own, "link": link}))
        done = subprocess.run(
            [sys.executable, "-m", "freewheel.cli.main", "train", str(file), "--json"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"freewheel train ended with {done.returncode}: {done.stderr[-400:]}")
    summary = json.loads(done.stdout)
    return {
        "accuracy": 100.0 * summary["final_accuracy"],
        "loss": summary["final_loss"],
        "bytes": summary["bytes_sent"],
        "wall_s": summary["wall_s"],
        "wait_s": summary["wait_s"],
        "compute_s": summary["compute_s"],
    }
