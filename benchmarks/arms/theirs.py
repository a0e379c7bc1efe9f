"""The peers' arms: all ranks of a script of ``benchmarks.peers``, run once."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arms.ours import MIB
from benchmarks.arms.places import Place


def run(
    place: Place, peer: str, arguments: Sequence[str], *, world_size: int, timeout_s: float = 300.0
) -> dict[str, float | None]:
    """Run a peer; return the same metrics as ``ours.train``, but for bytes per step.

    Args:
        place: where.
        peer: module of ``benchmarks.peers``.
        arguments: its own, beside rank and store.
        world_size: number of ranks.
        timeout_s: for each rank.
    """
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        before = place.counters()
        store = str(Path(folder) / "store")
        command = [sys.executable, "-m", f"benchmarks.peers.{peer}", "--store", store, *arguments]
        processes = [place.popen(rank, command) for rank in range(world_size)]
        lines = []
        try:
            for rank, process in enumerate(processes):
                out, errors = process.communicate(timeout=timeout_s)
                if process.returncode:
                    raise RuntimeError(f"{peer} rank {rank}: {errors[-400:]}")
                lines.append(json.loads(out))
        finally:
            for process in processes:
                _end(process)
        after = place.counters()
    return {
        "step_ms": 1e3 * lines[0]["median_step_s"],
        "mean_step_ms": 1e3 * lines[0]["mean_step_s"],
        "peak_rss_mb": max(line["peak_rss_bytes"] for line in lines) / MIB,
        "wire_mb": before and after and (after - before).tx_bytes / 1e6,
    }


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
        process.communicate()
