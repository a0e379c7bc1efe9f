"""Removes a lab when its owner ends, however it ends: run by ``lab.py`` as a process of its own.

It waits for the end of its standard input, which the owner holds open: closed by the owner on a
clean exit, by the kernel when the owner is killed. Then it ends every process inside the namespaces
named on its command line, and deletes them. It touches no other namespace. Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

GRACE_S = 2.0


def main(namespaces: Sequence[str]) -> int:
    """Wait for the owner's end, then remove the namespaces and all that runs in them."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    print("ready", flush=True)
    sys.stdin.buffer.read()
    _end(namespaces, signal.SIGTERM, GRACE_S)
    _end(namespaces, signal.SIGKILL, GRACE_S)
    for namespace in namespaces:
        subprocess.run(["ip", "netns", "delete", namespace], capture_output=True, check=False)
    return 0


def _end(namespaces: Sequence[str], number: signal.Signals, within_s: float) -> None:
    for pid in _pids(namespaces):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    deadline = time.monotonic() + within_s
    while _pids(namespaces) and time.monotonic() < deadline:
        time.sleep(0.02)


def _pids(namespaces: Sequence[str]) -> list[int]:
    pids: list[int] = []
    for namespace in namespaces:
        listed = subprocess.run(
            ["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False
        )
        pids += map(int, listed.stdout.split())
    return pids


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
