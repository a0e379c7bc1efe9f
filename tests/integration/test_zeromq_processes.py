"""The ZeroMQ link between real processes. Scenarios 17, 20, 22 and 25, and what is hostile.

Run as a script, this file is the other process: ``python FILE RUN_ID NAME BIND PARENT_ADDRESS``.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest
import torch
import zmq

from freewheel.errors import ConfigError, LinkError, LinkTimeoutError
from freewheel.transport.base import Message
from freewheel.transport.schema import Limits
from freewheel.transport.wire import HEADER
from freewheel.transport.zeromq import ZmqLink

RUN, OTHER_RUN = "run-0001", "run-0000"
ANY = "tcp://127.0.0.1:*"
WAIT_S = 60.0
STATE_NUMEL = 75_000_000  # 300 MB of float32
SIXTEEN_MB = Limits(max_message_bytes=16_000_000)


def other_process(run_id: str, name: str, bind: str, parent: str) -> None:
    with ZmqLink(name, run_id.encode(), bind, limits=SIXTEEN_MB) as link:
        link.connect({"parent": parent})
        link.send("parent", Message("hello", meta={"address": link.address}))
        while (message := link.receive(timeout_s=WAIT_S)).kind != "stop":
            if message.kind == "echo":
                link.send("parent", message)
            if message.kind == "send state":
                state = torch.arange(STATE_NUMEL, dtype=torch.float32)
                link.send("parent", Message("state", (state,)))
        link.close(linger_s=10.0)


@contextmanager
def started(
    parent: str, run_id: str = RUN, name: str = "child", bind: str = ANY
) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-W", "error", __file__, run_id, name, bind, parent]
    with subprocess.Popen(argv, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def parent() -> Iterator[ZmqLink]:
    with ZmqLink("parent", RUN.encode(), limits=SIXTEEN_MB) as link:
        yield link


def meet(parent: ZmqLink) -> str:
    address: str = parent.receive(kind="hello", timeout_s=WAIT_S).meta["address"]
    parent.connect({"child": address})
    return address


def echo(parent: ZmqLink, tensor: torch.Tensor, clock: int = 0) -> None:
    parent.send("child", Message("echo", (tensor,), clock=clock), timeout_s=WAIT_S)
    came = parent.receive(kind="echo", sender="child", timeout_s=WAIT_S)
    assert came.clock == clock
    assert torch.equal(came.tensors[0], tensor)


def test_messages_cross_and_both_processes_listen_on_loopback_only(parent: ZmqLink) -> None:
    with started(parent.address) as child:
        meet(parent)
        for clock, numel in enumerate((1, 1000, 1_000_000)):
            echo(parent, torch.randn(numel), clock)
        for pid in (os.getpid(), child.pid):
            listening = [
                c.laddr.ip
                for c in psutil.Process(pid).net_connections("inet")
                if c.status == psutil.CONN_LISTEN
            ]
            assert listening
            assert set(listening) == {"127.0.0.1"}
        parent.send("child", Message("stop"))
        assert child.wait(WAIT_S) == 0


def test_scenario_20_a_zombie_of_another_run_is_refused_and_our_run_goes_on(
    parent: ZmqLink,
) -> None:
    # The zombie has the name of one of ours, and is there first.
    with started(parent.address, run_id=OTHER_RUN):
        deadline = time.monotonic() + WAIT_S
        while not parent.refused:
            with pytest.raises(LinkTimeoutError):
                parent.receive(timeout_s=0.05)
            assert time.monotonic() < deadline
        with started(parent.address) as child:
            meet(parent)
            echo(parent, torch.randn(10))
            parent.send("child", Message("stop"))
            assert child.wait(WAIT_S) == 0
    assert parent.refused == 1


def test_scenario_22_a_state_of_300_mb_travels_under_a_limit_of_16_mb(parent: ZmqLink) -> None:
    with started(parent.address) as child:
        meet(parent)
        parent.send("child", Message("send state"))
        (state,) = parent.receive(kind="state", timeout_s=WAIT_S).tensors
        assert torch.equal(state, torch.arange(STATE_NUMEL, dtype=torch.float32))
        parent.send("child", Message("stop"))
        assert child.wait(WAIT_S) == 0
    received = parent.traffic.total_received()
    pieces = -(-4 * STATE_NUMEL // SIXTEEN_MB.piece_bytes)
    # 43 bytes a piece: 32 of header, 2 + 9 of framing; besides them the schema and the hello
    assert 0 < received.num_bytes - 4 * STATE_NUMEL - 43 * pieces < 250
    assert received.messages == 2


def test_sending_goes_on_when_a_killed_peer_is_back_at_the_old_address_or_a_new_one(
    parent: ZmqLink,
) -> None:
    with started(parent.address) as child:
        address = meet(parent)
        echo(parent, torch.ones(3), clock=1)
        child.send_signal(signal.SIGKILL)
        child.wait(WAIT_S)
    # back at the same ports, which the parent is not told: the schema must be announced again
    with started(parent.address, bind=address) as child:
        assert parent.receive(kind="hello", timeout_s=WAIT_S).meta["address"] == address
        echo(parent, torch.ones(3), clock=2)
        child.kill()
        child.wait(WAIT_S)
    with started(parent.address) as child:
        assert meet(parent) != address
        echo(parent, torch.ones(3), clock=3)
        parent.send("child", Message("stop"))
        assert child.wait(WAIT_S) == 0
    assert parent.refused == 0


def test_closing_does_not_wait_for_a_peer_that_is_stopped(parent: ZmqLink) -> None:
    with started(parent.address) as child:
        meet(parent)
        tensor = torch.zeros(1_000_000)
        echo(parent, tensor)
        child.send_signal(signal.SIGSTOP)

        def send_until_full() -> None:
            for _ in range(100):
                parent.send("child", Message("bulk", (tensor,)), timeout_s=0.3)

        with pytest.raises(LinkTimeoutError, match="its queue stayed full"):
            send_until_full()
        start_s = time.monotonic()
        parent.close(linger_s=0.5)
        assert time.monotonic() - start_s < 10


def test_a_reader_that_is_slower_than_heartbeats_loses_nothing() -> None:
    with (
        ZmqLink("a", RUN.encode(), heartbeat_s=0.05, queue_messages=4) as a,
        ZmqLink("b", RUN.encode(), heartbeat_s=0.05, queue_messages=4) as b,
    ):
        a.connect({"b": b.address})
        tensor = torch.zeros(1_000_000)
        clocks = itertools.count()

        def send_until_full() -> None:
            for clock in clocks:
                a.send("b", Message("bulk", (tensor,), clock=clock), timeout_s=1.0)

        with pytest.raises(LinkTimeoutError, match="its queue stayed full"):
            send_until_full()
        for clock in range(next(clocks) - 1):
            assert b.receive(timeout_s=WAIT_S).clock == clock


def test_scenario_17_a_peer_that_never_starts_is_named_at_the_deadline(parent: ZmqLink) -> None:
    parent.connect({"server 0": "tcp://127.0.0.1:9,10"})
    said = r"parent could not hand 'push' to server 0 .*within 0.3 s: it could not be reached"
    with pytest.raises(LinkTimeoutError, match=said):
        parent.send("server 0", Message("push", (torch.ones(1),)), timeout_s=0.3)


def test_scenario_25_a_free_port_is_found_and_a_busy_one_is_named() -> None:
    with ZmqLink("a", RUN.encode()) as a:
        with ZmqLink("b", RUN.encode()) as b:
            assert a.address != b.address
        busy = int(a.address.rpartition(":")[2].split(",")[0])
        with pytest.raises(LinkError, match=f"b cannot listen on tcp://127.0.0.1:{busy}: .*in use"):
            ZmqLink("b", RUN.encode(), f"tcp://127.0.0.1:{busy}")


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:*", "tcp://192.168.7.7:5000", "tcp://host:50"])
def test_an_address_beyond_this_machine_needs_insecure(address: str, parent: ZmqLink) -> None:
    with pytest.raises(ConfigError, match=r"beyond this machine.*--insecure"):
        ZmqLink("a", RUN.encode(), address)
    if "*" not in address:
        with pytest.raises(ConfigError, match=r"beyond this machine.*--insecure"):
            parent.connect({"peer": address})
    else:
        with ZmqLink("a", RUN.encode(), address, advertise="127.0.0.1", insecure=True) as link:
            parent.connect({"a": link.address})
            parent.send("a", Message("x"))
            assert link.receive(timeout_s=WAIT_S).kind == "x"


@pytest.mark.parametrize("address", ["127.0.0.1:80", "tcp://:80", "ipc://x", "tcp://a:1:2", ""])
def test_a_malformed_address_is_refused_with_the_form(address: str) -> None:
    with pytest.raises(ConfigError, match="not of the form tcp://HOST:PORT"):
        ZmqLink("a", RUN.encode(), address)


def test_what_strangers_write_to_the_ports_is_refused_and_our_run_goes_on(parent: ZmqLink) -> None:
    draw = random.Random(0)
    ports = [int(port) for port in parent.address.rpartition(":")[2].split(",")]
    for port in ports:
        for greeting in (
            b"",
            b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f",
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(greeting + draw.randbytes(2000))
    ours = b"F" + RUN.encode() + b"abcd" + b"stage 7"
    head = HEADER.pack(1, 1, 0, RUN.encode(), 0, 0, 0, 0)
    sent = 0
    with zmq.Context() as context:
        for identity in (None, b"x", b"F" + OTHER_RUN.encode() + b"abcdstage 0", ours[:13], ours):
            with context.socket(zmq.DEALER) as dealer:
                dealer.set(zmq.LINGER, 5000)
                if identity:
                    dealer.set(zmq.ROUTING_ID, identity)
                dealer.connect(f"tcp://127.0.0.1:{ports[1]}")
                for frames in ([b""], [head], [head, b"\xc1"], [b"\x00" * 100] * 50):
                    dealer.send_multipart(frames)
                    sent += 1
                # larger than any transfer of ours: the connection goes, and the bytes with it
                dealer.send(bytes(17_000_000))
        with ZmqLink("friend", RUN.encode()) as friend:
            friend.connect({"parent": parent.address})
            friend.send("parent", Message("x", (torch.ones(1),)))
            assert parent.receive(timeout_s=WAIT_S).sender == "friend"
            deadline = time.monotonic() + WAIT_S
            while parent.refused < sent:
                with pytest.raises(LinkTimeoutError):
                    parent.receive(timeout_s=0.05)
                assert time.monotonic() < deadline
    # the random bytes may have passed for a message or two as well
    assert parent.refused >= sent


def test_closing_gives_all_file_descriptors_and_threads_back() -> None:
    def use() -> None:
        with ZmqLink("a", RUN.encode()) as a, ZmqLink("b", RUN.encode()) as b:
            a.connect({"b": b.address, "nobody": "tcp://127.0.0.1:9,10"})
            a.send("b", Message("x", (torch.ones(100_000),)))
            b.receive(timeout_s=WAIT_S)
            with pytest.raises(LinkTimeoutError):
                a.send("nobody", Message("x"), timeout_s=0.01)

    use()  # what ZeroMQ and torch keep for the process
    me = psutil.Process()
    before = me.num_fds(), me.num_threads()
    for _ in range(3):
        use()
    assert (me.num_fds(), me.num_threads()) == before


if __name__ == "__main__":
    other_process(*sys.argv[1:])
