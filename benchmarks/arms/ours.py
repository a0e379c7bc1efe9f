"""Freewheel's own arms: one training run, its steps timed by its own records."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from benchmarks.arms.places import Place

MIB = 2**20


def train(
    place: Place, file: Path, overrides: Sequence[str], *, warmup: int, timeout_s: float = 300.0
) -> dict[str, float | None]:
    """Train once; return the time of a step after ``warmup``, memory and bytes.

    Returns:
        ``step_ms`` (median over the steps of rank 0), ``mean_step_ms``, ``peak_rss_mb`` (of the
        training process that held most), ``launcher_rss_mb`` (of the process that is in addition to
        them), ``mb_per_step`` (sent by all, as freewheel counts it), ``wire_mb`` (sent by all
        interfaces in the whole run, set-up and evaluation included; None on loopback), and
        ``byte_error``: how far what freewheel counted in the whole run is from what the interfaces
        sent less packet headers, as a share.
    """
    with tempfile.TemporaryDirectory(prefix="freewheel-") as folder:
        command = [*place.train_command(), str(file), "--set", f"run.dir={folder}"]
        for override in overrides:
            command += ["--set", override]
        before = place.counters()
        process = place.popen(0, command)
        watch = Memory(process.pid)
        try:
            out, errors = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()  # its children die with it
            process.communicate()
            raise
        finally:
            watch.stop()
        if process.returncode:
            raise RuntimeError(f"freewheel train ended with {process.returncode}: {errors[-400:]}")
        summary = json.loads(out)
        rows = [
            json.loads(line)
            for line in (Path(summary["run"]) / "metrics.jsonl").read_text().splitlines()
        ]
    timed = [
        1e3 * (row["compute_s"] + row["wait_s"] + row["send_s"])
        for row in rows
        if row.get("step", 0) > warmup and str(row.get("process")).endswith(" 0")
    ]
    after = place.counters()
    sent = None if before is None or after is None else after - before
    counted = summary["bytes_sent"] + summary["evaluation"]["bytes_sent"]
    return {
        "step_ms": statistics.median(timed),
        "mean_step_ms": statistics.fmean(timed),
        "peak_rss_mb": max(watch.children.values()) / MIB,
        "launcher_rss_mb": watch.own / MIB,
        "mb_per_step": summary["bytes_sent"] / summary["steps"] / 1e6,
        "wire_mb": sent and sent.tx_bytes / 1e6,
        "byte_error": sent and abs(counted / sent.tx_payload_bytes - 1),
    }


class Memory:
    """Reads the peak memory of a process and its children, from outside, ten times a second."""

    def __init__(self, pid: int) -> None:
        self.own = 0
        self.children: dict[int, int] = {}
        self._pid = pid
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop reading."""
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            self.own = max(self.own, _peak_rss(self._pid))
            for pid in _children(self._pid):
                self.children[pid] = max(self.children.get(pid, 0), _peak_rss(pid))


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += map(int, _read(task).split())
    return found


def _peak_rss(pid: int) -> int:
    match = re.search(r"VmHWM:\s*(\d+) kB", _read(Path(f"/proc/{pid}/status")))
    return int(match.group(1)) * 1024 if match else 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it ended meanwhile
        return ""
