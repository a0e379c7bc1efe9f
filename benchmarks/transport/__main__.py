"""Runs ``transport``: ``make bench NAME=transport``.

Throughput at 1 MB and latency at 1 KB and 200 KB between two processes, on an idle and on a busy
machine, over each carrier, with a plain TCP socket between the same two processes beside them.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from benchmarks.harness import Benchmark, Figure
from freewheel.transport.base import Link, Message
from freewheel.transport.local import LocalLink
from freewheel.transport.zeromq import ZmqLink

KB, MB = 1024, 1 << 20
SPIN = "while True: pass"
CARRIERS: dict[str, type[LocalLink] | type[ZmqLink]] = {"local": LocalLink, "zeromq": ZmqLink}


def measure(
    carrier: str, rounds: int = 5, messages: int = 200, echoes: int = 1000
) -> dict[str, float]:
    """Return medians over ``rounds``: GB/s one way, and one-way latencies in microseconds.

    Args:
        carrier: one of ``CARRIERS``.
        rounds: how often each figure is taken; they are interleaved.
        messages: of 1 MB, in one throughput figure.
        echoes: of 1 KB, in one latency figure, which is half their median time.
    """
    run_id = os.urandom(8)
    made = CARRIERS[carrier]("a", run_id)
    with made as link, socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        argv = [sys.executable, "-m", "benchmarks.transport", carrier, link.address, run_id.hex()]
        argv.append(port)
        with subprocess.Popen(argv) as child:
            try:
                link.connect({"b": link.receive(kind="hello").meta["address"]})
                plain, _ = server.accept()
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with plain:
                    figures: dict[str, Callable[[], float]] = {
                        "gb_per_s_1mb": lambda: _throughput(link, messages),
                        "tcp_gb_per_s_1mb": lambda: _tcp_throughput(link, plain, messages),
                        "latency_us_1kb": lambda: _latency(link, echoes),
                        "latency_us_200kb": lambda: _latency(link, echoes, 200 * KB),
                        "tcp_latency_us_1kb": lambda: _tcp_latency(link, plain, echoes),
                        "busy_latency_us_1kb": lambda: _busy(lambda: _latency(link, echoes)),
                        "busy_tcp_latency_us_1kb": lambda: _busy(
                            lambda: _tcp_latency(link, plain, echoes)
                        ),
                    }
                    for figure in figures.values():  # warm-up
                        figure()
                    seen = [{name: f() for name, f in figures.items()} for _ in range(rounds)]
                    link.send("b", Message("stop"))
            finally:
                child.kill()
    return {name: statistics.median(one[name] for one in seen) for name in figures}


def _throughput(link: Link, messages: int) -> float:
    tensor = torch.zeros(MB, dtype=torch.uint8)
    start_s = time.perf_counter()
    for _ in range(messages):
        link.send("b", Message("bulk", (tensor,)))
    link.send("b", Message("last", (tensor[:1],)))
    link.receive(kind="done")
    return messages * MB / (time.perf_counter() - start_s) / 1e9


def _latency(link: Link, echoes: int, size: int = KB) -> float:
    tensor = torch.zeros(size, dtype=torch.uint8)

    def echo() -> None:
        link.send("b", Message("echo", (tensor,)))
        link.receive(kind="echo")

    return _half_median_us(echo, echoes)


def _tcp_throughput(link: Link, plain: socket.socket, messages: int) -> float:
    data = bytes(MB)
    link.send("b", Message("tcp bulk", meta={"count": messages}))
    _fill(plain, memoryview(bytearray(1)))
    start_s = time.perf_counter()
    for _ in range(messages):
        plain.sendall(data)
    _fill(plain, memoryview(bytearray(1)))
    return messages * MB / (time.perf_counter() - start_s) / 1e9


def _tcp_latency(link: Link, plain: socket.socket, echoes: int) -> float:
    data, buffer = bytes(KB), memoryview(bytearray(KB))
    link.send("b", Message("tcp echo", meta={"count": echoes}))
    _fill(plain, memoryview(bytearray(1)))

    def echo() -> None:
        plain.sendall(data)
        _fill(plain, buffer)

    return _half_median_us(echo, echoes)


def _half_median_us(echo: Callable[[], None], echoes: int) -> float:
    durations = []
    for _ in range(echoes):
        start_s = time.perf_counter()
        echo()
        durations.append(time.perf_counter() - start_s)
    return statistics.median(durations) / 2 * 1e6


def _busy(figure: Callable[[], float]) -> float:
    with _spinning():
        return figure()


@contextmanager
def _spinning() -> Iterator[None]:
    """Keep every core busy."""
    cores = len(os.sched_getaffinity(0))
    spinners = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(cores)]
    try:
        time.sleep(0.2)
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def _fill(plain: socket.socket, buffer: memoryview) -> None:
    while buffer:
        count = plain.recv_into(buffer)
        if not count:
            raise ConnectionError("the other process is gone")
        buffer = buffer[count:]


def _other(carrier: str, address: str, run_id: str, port: str) -> None:
    """Answer, as the second process."""
    with (
        CARRIERS[carrier]("b", bytes.fromhex(run_id)) as link,
        socket.create_connection(("127.0.0.1", int(port))) as plain,
    ):
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.connect({"a": address})
        link.send("a", Message("hello", meta={"address": link.address}))
        while (message := link.receive()).kind != "stop":
            if message.kind == "echo":
                link.send("a", Message("echo", message.tensors))
            elif message.kind == "last":
                link.send("a", Message("done"))
            elif message.kind.startswith("tcp"):
                plain.sendall(b"s")
                buffer = memoryview(bytearray(MB if message.kind == "tcp bulk" else KB))
                for _ in range(message.meta["count"]):
                    _fill(plain, buffer)
                    if message.kind == "tcp echo":
                        plain.sendall(buffer)
                if message.kind == "tcp bulk":
                    plain.sendall(b"e")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and write the results; or answer, as the second process."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if len(argv) == 4 and argv[0] in CARRIERS:
        _other(*argv)
        return 0
    bench = Benchmark.from_command("transport", argv)
    settings = {key: int(bench.settings[key]) for key in ("rounds", "messages", "echoes")}
    bench.run({name: lambda _, c=name: measure(c, **settings) for name in CARRIERS})
    asked = {
        "gb_per_s_1mb": (1.2, "at_least"),
        "latency_us_1kb": (150.0, "at_most"),
        "busy_latency_us_1kb": (1000.0, "at_most"),
        "latency_us_200kb": (None, "at_most"),
        "tcp_gb_per_s_1mb": (None, "at_least"),
        "tcp_latency_us_1kb": (None, "at_most"),
        "busy_tcp_latency_us_1kb": (None, "at_most"),
    }
    bench.write(
        {
            f"{metric}, {carrier}": Figure(
                asked=number, rule=rule, statistic="median", metric=metric, arm=carrier
            )
            for carrier in CARRIERS
            for metric, (number, rule) in asked.items()
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
