"""The network lab: its rate, its delay, its counters, and that it leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from benchmarks.netlab import Netlab, NetlabError, unavailable

ROOT = Path(__file__).parents[2]
PAYLOAD_BYTES = 1_000_000
HEADER_BYTES = 14 + 20 + 32  # Ethernet, IPv4, TCP with time stamps
FULL_SEGMENT_BYTES = 1500 - 20 - 32

pytestmark = pytest.mark.root

# One byte is answered by one byte (echo), then everything is read to its end (bulk).
SERVER = """
import socket
server = socket.create_server(("0.0.0.0", 5000), reuse_port=True)
print("ready", flush=True)
peer, _ = server.accept()
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
for _ in range(20):
    peer.sendall(peer.recv(1))
total = 0
while chunk := peer.recv(1 << 20):
    total += len(chunk)
peer.sendall(b"x")
print(total)
"""
CLIENT = """
import json, socket, statistics, sys, time
peer = socket.create_connection((sys.argv[1], 5000))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
echoes = []
for _ in range(20):
    start = time.perf_counter()
    peer.sendall(b"x")
    peer.recv(1)
    echoes.append(time.perf_counter() - start)
start = time.perf_counter()
peer.sendall(bytes(int(sys.argv[2])))
peer.shutdown(socket.SHUT_WR)
peer.recv(1)
bulk_s = time.perf_counter() - start
print(json.dumps({"echo_s": statistics.median(echoes), "bulk_s": bulk_s}))
"""


@cache
def why_not(delay: bool) -> str | None:
    return unavailable(delay=delay)


@pytest.fixture
def lab() -> Callable[..., Netlab]:
    def make(**settings: float) -> Netlab:
        if reason := why_not(settings.get("delay_ms", 0) > 0):
            pytest.skip(reason)
        return Netlab(**settings)  # type: ignore[arg-type]  # hosts is an int where it is given

    return make


def namespaces(owner: int) -> list[str]:
    """Return the namespaces of the labs of one process; others may have labs at the same time."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    names = [line.split()[0] for line in listed.stdout.splitlines()]
    return [name for name in names if name.startswith(f"netlab-{owner}-")]


def measure(running: Netlab) -> dict[str, float]:
    server = running.popen(0, [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    client = [sys.executable, "-c", CLIENT, running.address(0), str(PAYLOAD_BYTES)]
    measured = json.loads(running.run(1, client, timeout_s=60).stdout)
    assert server.communicate(timeout=20)[0] == f"{PAYLOAD_BYTES}\n"
    return dict(measured)


@pytest.mark.parametrize("rate_mbit", [10, 50])
def test_rate_is_within_a_tenth(lab: Callable[..., Netlab], rate_mbit: float) -> None:
    with lab(hosts=2, rate_mbit=rate_mbit) as running:
        before = running.counters(1)
        measured = measure(running)
        sent = running.counters(1) - before
        received = running.counters(0)
    assert sent.tx_bytes * 8 / measured["bulk_s"] / 1e6 == pytest.approx(rate_mbit, rel=0.1)
    # Each segment carries its headers: offload is off, so the interface counts them all.
    least = PAYLOAD_BYTES + HEADER_BYTES * (PAYLOAD_BYTES // FULL_SEGMENT_BYTES)
    assert least <= sent.tx_bytes <= 1.03 * least
    assert received.rx_bytes == pytest.approx(sent.tx_bytes, rel=0.01)


def test_delay_is_within_a_fifth_and_rate_holds_with_it(lab: Callable[..., Netlab]) -> None:
    with lab(hosts=2, rate_mbit=10, delay_ms=20) as running:
        measured = measure(running)
        sent = running.counters(1)
    assert measured["echo_s"] == pytest.approx(0.040, rel=0.2)
    # The last byte and its answer need one delay each, and the window has to open first.
    at_rate_s = sent.tx_bytes * 8 / 10e6
    assert at_rate_s <= measured["bulk_s"] * 1.1
    assert measured["bulk_s"] <= at_rate_s * 1.1 + 6 * 0.040


def test_three_hosts_see_each_other_and_nobody_else_hears(lab: Callable[..., Netlab]) -> None:
    with lab(hosts=3, rate_mbit=50) as running:
        measure(running)
        quiet = running.counters(2)
        assert (quiet.tx_bytes, quiet.rx_bytes) == (0, 0)
        place = running.run(2, ["sh", "-c", "echo $RANK $WORLD_SIZE $MASTER_ADDR"]).stdout.split()
        assert place == ["2", "3", running.address(0)]


def test_rate_changes_while_it_runs(lab: Callable[..., Netlab]) -> None:
    with lab(hosts=2, rate_mbit=50) as running:
        running.change_rate(10)
        measured = measure(running)
        sent = running.counters(1)
    assert sent.tx_bytes * 8 / measured["bulk_s"] / 1e6 == pytest.approx(10, rel=0.1)


@pytest.mark.parametrize("delay_ms", [0, 1])
def test_nothing_is_left_after_an_exception(lab: Callable[..., Netlab], delay_ms: float) -> None:
    stubborn = ["sh", "-c", "trap '' TERM; echo up; while :; do sleep 9; done"]
    started = []

    def fail(running: Netlab) -> None:
        with running:
            assert len(namespaces(os.getpid())) >= 2
            started.append(running.popen(1, stubborn, stdout=subprocess.PIPE, text=True))
            assert started[0].stdout.readline() == "up\n"
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail(lab(hosts=2, rate_mbit=100, delay_ms=delay_ms))
    assert namespaces(os.getpid()) == []
    assert started[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_owner_is_killed(
    lab: Callable[..., Netlab], number: signal.Signals
) -> None:
    lab()
    command = ["sh", "-c", "echo $$ here; exec sleep 60"]
    owner = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.netlab", "--delay-ms", "1", "--", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert owner.stdout is not None
    pids = [int(owner.stdout.readline().split()[2]) for _ in range(2)]
    assert len(namespaces(owner.pid)) == 2
    helpers = [
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and f"netlab-{owner.pid}-".encode() in read(entry / "cmdline")
    ]
    assert len(helpers) == 2  # the janitor and the delay
    fds = [os.pidfd_open(pid) for pid in [*pids, *helpers]]
    os.kill(owner.pid, number)
    owner.communicate(timeout=20)
    for fd in fds:
        assert ended(fd, within_s=20)
    assert namespaces(owner.pid) == []


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it ended meanwhile
        return b""


def ended(pidfd: int, within_s: float) -> bool:
    try:
        return bool(select.select([pidfd], [], [], within_s)[0])
    finally:
        os.close(pidfd)


def test_a_command_that_fails_or_hangs_is_told_with_its_output(lab: Callable[..., Netlab]) -> None:
    with lab(hosts=1) as running:
        with pytest.raises(NetlabError, match=r"(?s)host 0: .*ended with 3.*it broke"):
            running.run(0, ["sh", "-c", "echo it broke >&2; exit 3"])
        with pytest.raises(NetlabError, match="had not ended after"):
            running.run(0, ["sh", "-c", "sleep 60 & sleep 60"], timeout_s=0.2)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="hosts must be 1 to 200, got 0"):
        Netlab(hosts=0)
    with pytest.raises(ValueError, match="rate_mbit must be above 0, got -1"):
        Netlab(rate_mbit=-1)
    with pytest.raises(ValueError, match="delay_ms must be >= 0, got -2"):
        Netlab(delay_ms=-2)
