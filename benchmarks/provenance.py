"""Where and with what a benchmark ran: machine, versions, load. No host or user name."""

from __future__ import annotations

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("freewheel", "torch", "numpy", "scipy", "pyzmq", "msgpack", "scikit-learn")


def machine() -> dict[str, Any]:
    """Return cores, CPU model, memory in GiB and the system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    release = re.match(r"\d+\.\d+", platform.release())
    return {
        "cores": cores,
        "cpu_model": _first("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {release.group() if release else ''}".strip(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that carry the numbers."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def load() -> list[float]:
    """Return the load averages over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def _memory_gib() -> float | None:
    kib = _first("/proc/meminfo", r"MemTotal:\s*(\d+) kB")
    return round(int(kib) / 2**20, 1) if kib else None


def _first(path: str, pattern: str) -> str | None:
    try:
        match = re.search(pattern, Path(path).read_text())
    except OSError:
        return None
    return match.group(1).strip() if match else None
