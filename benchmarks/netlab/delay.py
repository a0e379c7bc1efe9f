"""A switch with a delay: joins the TAP devices of several namespaces, run by ``lab.py``.

Every frame leaves ``delay_ms`` after it came, no sooner than the port it leaves by has sent the
frame before it at ``rate_mbit``. What a host sends is shaped by the kernel (tbf in its namespace).
Standard library only.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
CLONE_NEWNET = 0x40000000
MAX_FRAME_BYTES = 65536
MULTICAST_BIT = 0x01


def mac(host: int) -> str:
    """Return the link address of a host."""
    return f"02:00:00:00:{host >> 8:02x}:{host & 255:02x}"


def enter(namespace: str) -> None:
    """Move this thread into a network namespace."""
    with Path("/run/netns", namespace).open("rb") as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter namespace {namespace}")


def open_tap(namespace: str, device: str) -> int:
    """Make a TAP device inside a namespace; return its file descriptor, non-blocking."""
    enter(namespace)
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", device.encode(), IFF_TAP | IFF_NO_PI))
    return tap


class Port:
    """One host's port of the switch: what waits to be sent to it, and when it is free again."""

    def __init__(self, tap: int, rate_mbit: float | None) -> None:
        self.tap = tap
        self.seconds_per_byte = 8e-6 / rate_mbit if rate_mbit else 0.0
        self.free_at = 0.0
        self.waiting: deque[tuple[float, bytes]] = deque()

    def put(self, frame: bytes, at: float) -> None:
        """Queue a frame that may leave at ``at`` at the earliest."""
        at = max(at, self.free_at)
        self.free_at = at + len(frame) * self.seconds_per_byte
        self.waiting.append((at, frame))

    def deliver(self, now: float) -> None:
        """Send what is due."""
        while self.waiting and self.waiting[0][0] <= now:
            with suppress(OSError):  # the interface is down, or its queue full: the frame is lost
                os.write(self.tap, self.waiting.popleft()[1])


def switch(ports: Sequence[Port], delay_s: float, end: int) -> None:
    """Carry frames between the ports until ``end`` (a file descriptor) closes."""
    by_mac = {bytes.fromhex(mac(host).replace(":", "")): port for host, port in enumerate(ports)}
    by_tap = {port.tap: port for port in ports}
    watched = [*by_tap, end]
    while True:
        now = time.monotonic()
        for port in ports:
            port.deliver(now)
        due = [port.waiting[0][0] for port in ports if port.waiting]
        timeout = max(min(due) - time.monotonic(), 0.0) if due else None
        # select, not poll: poll's timeout is in whole milliseconds.
        readable, _, _ = select.select(watched, [], [], timeout)
        if end in readable:
            return
        for tap in readable:
            with suppress(BlockingIOError):
                for _ in range(64):  # then look at what is due
                    frame = os.read(tap, MAX_FRAME_BYTES)
                    at = time.monotonic() + delay_s
                    if frame[0] & MULTICAST_BIT:
                        for port in ports:
                            if port.tap != tap:
                                port.put(frame, at)
                    elif frame[:6] in by_mac:
                        by_mac[frame[:6]].put(frame, at)


def main(argv: Sequence[str] | None = None) -> int:
    """Make a TAP device in each namespace, say ``ready``, and switch until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-ms", type=float, required=True)
    parser.add_argument("--rate-mbit", type=float)
    parser.add_argument("--device", required=True)
    parser.add_argument("namespaces", nargs="+")
    given = parser.parse_args(argv)
    ports = [Port(open_tap(name, given.device), given.rate_mbit) for name in given.namespaces]
    with suppress(PermissionError):
        os.nice(-15)  # the delay must hold while the hosts keep every core busy
    print("ready", flush=True)
    switch(ports, given.delay_ms / 1000.0, sys.stdin.fileno())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
