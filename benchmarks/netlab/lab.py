"""The lab: network namespaces as hosts, joined by a switch, with shaped and delayed links.

Without delay the switch is a Linux bridge in a namespace of its own, joined to the hosts by veth
pairs. With delay it is the process of ``delay.py``, joined by TAP devices. Either way each host has
one interface ``eth0`` whose outgoing traffic passes a token bucket filter (tbf) with a small burst;
segmentation offload is off, so that the interface counts what a wire would carry.

All hosts share one machine name, file system and set of UNIX sockets and shared memory segments:
only IP traffic crosses the links, so pin a peer to ``eth0``.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.netlab.delay import mac

DEVICE = "eth0"
PORT = 29400
MTU_BYTES = 1500
PACKET_HEADER_BYTES = 14 + 20 + 32
MIN_BURST_BYTES = 16 * 1024
START_S = 20.0

# No IPv6: nothing but the measured traffic is to cross the interfaces. The congestion control is
# that of most hosts; a kernel may keep it from namespaces, and reno is there always.
SETTLE = """
cd /proc/sys/net
for file in ipv6/conf/*/disable_ipv6; do [ ! -e $file ] || echo 1 > $file; done
(echo cubic > ipv4/tcp_congestion_control) 2> /dev/null || echo reno > ipv4/tcp_congestion_control
cat ipv4/tcp_congestion_control
"""

_numbers = itertools.count()


class NetlabError(RuntimeError):
    """The lab cannot be set up, or a command in it failed."""


@dataclass(frozen=True)
class Counters:
    """What a host's interface sent and received since the lab began, Ethernet headers included."""

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    def __sub__(self, before: Counters) -> Counters:
        return Counters(*(a - b for a, b in zip(astuple(self), astuple(before), strict=True)))

    @property
    def tx_payload_bytes(self) -> int:
        """What was sent less Ethernet, IPv4 and TCP headers (with time stamps) of each packet."""
        return self.tx_bytes - self.tx_packets * PACKET_HEADER_BYTES


class Netlab:
    """Hosts with shaped links between them, for as long as the ``with`` block lasts.

    Whatever ends the block or its process, SIGKILL included, all processes inside the hosts are
    ended and the namespaces deleted, by a janitor process that waits for the owner's end.

    Args:
        hosts: how many, at least 1.
        rate_mbit: of each host's link, in each direction, 10**6 bits/s; None for no limit.
        delay_ms: one-way delay between any two hosts.

    Raises:
        NetlabError: not root, or iproute2, tbf, or TAP devices are missing; the message says which.

    Example::

        with Netlab(hosts=2, rate_mbit=100, delay_ms=5) as lab:
            server = lab.popen(0, ["iperf3", "-s", "-1"])
            print(lab.run(1, ["iperf3", "-c", lab.address(0)]).stdout)
            print(lab.counters(1).tx_bytes)
    """

    def __init__(self, hosts: int = 2, rate_mbit: float | None = None, delay_ms: float = 0) -> None:
        if hosts < 1 or hosts > 200:
            raise ValueError(f"hosts must be 1 to 200, got {hosts}")
        if rate_mbit is not None and rate_mbit <= 0:
            raise ValueError(f"rate_mbit must be above 0, got {rate_mbit}; use None for no limit")
        if delay_ms < 0:
            raise ValueError(f"delay_ms must be >= 0, got {delay_ms}")
        self.hosts, self.rate_mbit, self.delay_ms = hosts, rate_mbit, delay_ms
        self.congestion_control = ""
        prefix = f"netlab-{os.getpid()}-{next(_numbers)}"
        self._namespaces = [f"{prefix}-h{host}" for host in range(hosts)]
        self._switch = f"{prefix}-sw"
        self._janitor: subprocess.Popen[str] | None = None
        self._delay: subprocess.Popen[str] | None = None
        self._running: list[subprocess.Popen[Any]] = []

    def __enter__(self) -> Self:
        _check_privileges(self.delay_ms > 0)
        here = Path(__file__).parent
        self._janitor = _helper([here / "janitor.py", *self._namespaces, self._switch])
        try:
            for namespace in self._namespaces:
                self.congestion_control = _add(namespace)
            if self.delay_ms > 0:
                self._join_by_delay(here / "delay.py")
            else:
                self._join_by_bridge()
            for host in range(self.hosts):
                self._configure(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes in the hosts and delete the namespaces. Safe to call twice."""
        if self._janitor is None:
            return
        self._janitor.communicate()  # closes its standard input, then waits for its end
        self._janitor = None
        for process in [*self._running, self._delay]:
            if process is not None:
                process.wait()
                for stream in (process.stdin, process.stdout, process.stderr):
                    if stream is not None:
                        stream.close()

    def address(self, host: int) -> str:
        """Return the IP address of a host."""
        return f"10.77.0.{self._known(host) + 1}"

    def namespace(self, host: int) -> str:
        """Return the name of a host's network namespace."""
        return self._namespaces[self._known(host)]

    def environment(self, host: int) -> dict[str, str]:
        """Return the variables by which torch.distributed and others learn their place."""
        return {
            "RANK": str(self._known(host)),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(self.hosts),
            "MASTER_ADDR": self.address(0),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": DEVICE,
            "NETLAB_ADDRESS": self.address(host),
        }

    def popen(self, host: int, argv: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a command on a host.

        Args:
            host: which.
            argv: command and arguments.
            **options: of ``subprocess.Popen``; ``env`` is added to ours and to ``environment``.
                The command has a session of its own: Ctrl-C reaches the owner, who ends it.
        """
        extra: Mapping[str, str] = options.pop("env", {})
        inside = ["ip", "netns", "exec", self._namespaces[self._known(host)], *argv]
        env = {**os.environ, **self.environment(host), **extra}
        process: subprocess.Popen[Any] = subprocess.Popen(
            inside, env=env, start_new_session=True, **options
        )
        self._running.append(process)
        return process

    def run(
        self, host: int, argv: Sequence[str], *, timeout_s: float = 60.0, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end, its output captured as text.

        Raises:
            NetlabError: it failed, or had not ended after ``timeout_s``; with its output.
        """
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.popen(host, argv, text=True, **pipes, **options)
        try:
            out, err = process.communicate(timeout=timeout_s)
            what = f"ended with {process.returncode}"
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its children hold the pipes open
            out, err = process.communicate()
            what = f"had not ended after {timeout_s} s"
        self._running.remove(process)
        if process.returncode:
            raise NetlabError(f"host {host}: {' '.join(argv)} {what}\n{out}{err}")
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def counters(self, host: int) -> Counters:
        """Return what the interface of a host has counted."""
        shown = _run(["ip", "-n", self._namespaces[self._known(host)], "-s", "-j", "link", "show"])
        link = next(link for link in json.loads(shown) if link["ifname"] == DEVICE)
        sent, received = link["stats64"]["tx"], link["stats64"]["rx"]
        return Counters(sent["bytes"], received["bytes"], sent["packets"], received["packets"])

    def change_rate(self, rate_mbit: float) -> None:
        """Give all links another rate while traffic runs.

        Raises:
            ValueError: the links were not shaped to begin with, or have a delay.
        """
        if self.rate_mbit is None or self.delay_ms > 0:
            raise ValueError("only links with a rate and without delay can change their rate")
        self.rate_mbit = rate_mbit
        for host in range(self.hosts):
            self._shape("change", host, rate_mbit)

    def _known(self, host: int) -> int:
        if not 0 <= host < self.hosts:
            raise ValueError(f"host must be 0 to {self.hosts - 1}, got {host}")
        return host

    def _shape(self, verb: str, host: int, rate_mbit: float) -> None:
        _run(_tbf(verb, self._namespaces[host], DEVICE, rate_mbit))
        # Of two hosts the sender's limit is the receiver's too; of more, several may send to one.
        if self.hosts > 2 and self.delay_ms == 0:
            _run(_tbf(verb, self._switch, f"port{host}", rate_mbit))

    def _join_by_bridge(self) -> None:
        _add(self._switch)
        lines = ["link add br0 type bridge mcast_snooping 0", "link set br0 up"]
        for host, namespace in enumerate(self._namespaces):
            lines += [
                f"link add port{host} type veth peer name {DEVICE} netns {namespace}",
                f"link set port{host} master br0",
                f"link set port{host} gso_max_segs 1 up",
            ]
        _batch(self._switch, lines)
        # Where each host is, is known from the start: nothing is flooded to the others.
        known = [
            f"fdb replace {mac(host)} dev port{host} master static" for host in range(self.hosts)
        ]
        _batch(self._switch, known, tool="bridge")

    def _join_by_delay(self, script: Path) -> None:
        rate = [] if self.rate_mbit is None else ["--rate-mbit", self.rate_mbit]
        self._delay = _helper(
            [script, "--delay-ms", self.delay_ms, *rate, "--device", DEVICE, *self._namespaces]
        )

    def _configure(self, host: int) -> None:
        namespace = self._namespaces[host]
        lines = [
            "link set lo up",
            f"link set {DEVICE} address {mac(host)} mtu {MTU_BYTES} gso_max_segs 1 up",
            f"addr add {self.address(host)}/24 dev {DEVICE}",
        ]
        for other in range(self.hosts):
            if other != host:
                lines.append(f"neigh add {self.address(other)} lladdr {mac(other)} dev {DEVICE}")
        _batch(namespace, lines)
        if self.rate_mbit is not None:
            self._shape("add", host, self.rate_mbit)


def unavailable(*, delay: bool = False) -> str | None:
    """Return why a lab cannot be had on this machine, None if it can: one is set up to see."""
    try:
        with Netlab(hosts=2, rate_mbit=100, delay_ms=1 if delay else 0):
            return None
    except (NetlabError, OSError) as error:
        return str(error)


def _tbf(verb: str, namespace: str, device: str, rate_mbit: float) -> list[str]:
    burst = max(MIN_BURST_BYTES, int(rate_mbit * 256))
    shape = ["tbf", "rate", f"{int(rate_mbit * 1e6)}bit", "burst", str(burst), "latency", "50ms"]
    return ["tc", "-n", namespace, "qdisc", verb, "dev", device, "root", *shape]


def _check_privileges(taps: bool) -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise NetlabError("a network lab needs root on Linux (network namespaces)")
    missing = [tool for tool in ("ip", "tc", "bridge") if shutil.which(tool) is None]
    if missing:
        raise NetlabError(f"{missing} not found: install iproute2")
    if taps and not Path("/dev/net/tun").exists():
        raise NetlabError("/dev/net/tun is missing: links with delay need TAP devices")


def _add(namespace: str) -> str:
    """Make a namespace; return its TCP congestion control."""
    _run(["ip", "netns", "add", namespace])
    return _run(["ip", "netns", "exec", namespace, "sh", "-c", SETTLE]).strip()


def _helper(argv: Sequence[object]) -> subprocess.Popen[str]:
    """Start a helper of ours in a session of its own (no Ctrl-C), and wait until it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-I", *map(str, argv)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if process.stdout.readline() != "ready\n":
        process.kill()
        raise NetlabError(f"{argv[0]} did not start: {process.communicate()[1]}")
    return process


def _batch(namespace: str, lines: Sequence[str], tool: str = "ip") -> None:
    _run([tool, "-n", namespace, "-batch", "-"], stdin="\n".join(lines))


def _run(argv: Sequence[str], stdin: str | None = None) -> str:
    done = subprocess.run(
        argv, input=stdin, capture_output=True, text=True, timeout=START_S, check=False
    )
    if done.returncode:
        raise NetlabError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout
