"""Runs one command on every host of a network lab: ``python -m benchmarks.netlab -- CMD``.

Each line of output is prefixed by its host; what the interfaces counted comes last, on stderr. The
command finds its place in RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME, and its
own address in NETLAB_ADDRESS. The exit code is the first that is not 0.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import IO

from benchmarks.netlab import Netlab, NetlabError


def main(argv: Sequence[str] | None = None) -> int:
    """Set up the lab, run the command on every host, and tear it down."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.netlab")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rate-mbit", type=float, help="of each link; none: not limited")
    parser.add_argument("--delay-ms", type=float, default=0.0, help="one way, between two hosts")
    parser.add_argument("command", nargs="+", help="after --")
    given = parser.parse_args(argv)
    try:
        with Netlab(given.hosts, given.rate_mbit, given.delay_ms) as lab:
            return _on_all(lab, given.command)
    except (NetlabError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _on_all(lab: Netlab, command: Sequence[str]) -> int:
    processes = [
        lab.popen(host, command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for host in range(lab.hosts)
    ]
    readers = [
        threading.Thread(target=_echo, args=(host, process.stdout))
        for host, process in enumerate(processes)
    ]
    for reader in readers:
        reader.start()
    codes = [process.wait() for process in processes]
    for reader in readers:
        reader.join()
    for host in range(lab.hosts):
        print(f"host {host}: {lab.counters(host)}", file=sys.stderr)
    return next((code for code in codes if code), 0)


def _echo(host: int, stream: IO[str]) -> None:
    for line in stream:
        print(f"host {host}: {line}", end="", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
