"""Servers and workers on hosts of a network lab: the server on host 0, worker r on host r + 1."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Metrics
from benchmarks.netlab import Netlab
from benchmarks.netlab.lab import DEVICE

_HERE: dict[str, Any] = {
    "cwd": ROOT.parent,
    "env": {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT.parent)},
}
_TIMEOUT_S = 300.0


def ours(
    given: Sequence[str], workers: int, rate_mbit: float, codec: Mapping[str, str], seed: int
) -> Metrics:
    """Run ``freewheel launch``; return updates per second, by the slowest worker."""
    with Netlab(workers + 1, rate_mbit) as lab, tempfile.TemporaryDirectory(prefix="loop-") as out:
        names = json.dumps([lab.namespace(host) for host in range(workers + 1)])
        settings = {
            "run.dir": out,
            "run.threads": 1,
            "link.bind": DEVICE,
            "link.insecure": "true",
            **{f"codec.{way}": name for way, name in codec.items()},
        }
        command = [
            *(sys.executable, "-m", "freewheel.cli.main", "launch"),
            *(str(ROOT / "arms" / "on_host.py"), "--workers", str(workers), "--protocol", "asp"),
            *(part for key, value in settings.items() for part in ("--set", f"{key}={value}")),
            *("--json", "--", names, str(ROOT / "peers" / "loop.py")),
            *(*given, "--seed", str(seed), "--out", out),
        ]
        lab.run(0, command, timeout_s=_TIMEOUT_S, **_HERE)
        seconds = [float((Path(out) / str(rank)).read_text()) for rank in range(workers)]
        return _rate(lab, given, seconds)


def rpc(given: Sequence[str], workers: int, rate_mbit: float, seed: int) -> Metrics:
    """Run the parameter server by PyTorch RPC; return updates per second, likewise."""
    command = [sys.executable, "-m", "benchmarks.peers.rpc_server", "--one-rank", *given]
    command += ["--seed", str(seed)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with Netlab(workers + 1, rate_mbit) as lab:
        ranks = [lab.popen(host, command, **pipes, **_HERE) for host in range(workers + 1)]
        said = [process.communicate(timeout=_TIMEOUT_S) for process in ranks]
        for process, (_, errors) in zip(ranks, said, strict=True):
            if process.returncode:
                raise RuntimeError(f"rpc_server: {errors[-400:]}")
        return _rate(lab, given, [float(out) for out, _ in said[1:]])


def _rate(lab: Netlab, given: Sequence[str], seconds: Sequence[float]) -> Metrics:
    updates = int(given[given.index("--updates") + 1])
    sent = sum(lab.counters(host).tx_bytes for host in range(lab.hosts))
    rate = len(seconds) * updates / max(seconds)
    return {"updates_per_s": rate, "wire_mb": sent / 1e6}
