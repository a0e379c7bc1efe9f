"""The link of one host between real processes: deaths, zombies, strangers, and large states.

Run as a script, this file is the other process: ``python FILE RUN_ID NAME PARENT_ADDRESS``.
"""

from __future__ import annotations

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

from freewheel.config import parse_config
from freewheel.errors import ConfigError, LinkTimeoutError
from freewheel.runtime.links import is_local
from freewheel.transport.base import Message
from freewheel.transport.local import LocalLink
from freewheel.transport.ring import SendRing
from freewheel.transport.unix import Hello, abstract

RUN, OTHER_RUN = "run-0001", "run-0000"
WAIT_S = 60.0
STATE_NUMEL = 75_000_000  # 300 MB of float32, more than any ring holds


def other_process(run_id: str, name: str, parent: str) -> None:
    with LocalLink(name, run_id.encode()) as link:
        link.connect({"parent": parent})
        link.send("parent", Message("hello", meta={"address": link.address}))
        while (message := link.receive(timeout_s=WAIT_S)).kind != "stop":
            if message.kind == "echo":
                link.send("parent", message)
            if message.kind == "send state":
                state = torch.arange(STATE_NUMEL, dtype=torch.float32)
                link.send("parent", Message("state", (state,)))


@contextmanager
def started(
    parent: str, run_id: str = RUN, name: str = "child"
) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-W", "error", __file__, run_id, name, parent]
    with subprocess.Popen(argv, env={**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def parent() -> Iterator[LocalLink]:
    with LocalLink("parent", RUN.encode()) as link:
        yield link


def meet(parent: LocalLink) -> str:
    address: str = parent.receive(kind="hello", timeout_s=WAIT_S).meta["address"]
    parent.connect({"child": address})
    return address


def echo(parent: LocalLink, tensor: torch.Tensor, clock: int = 0) -> None:
    parent.send("child", Message("echo", (tensor,), clock=clock), timeout_s=WAIT_S)
    came = parent.receive(kind="echo", sender="child", timeout_s=WAIT_S)
    assert came.clock == clock
    assert torch.equal(came.tensors[0], tensor)


def test_messages_cross_and_nobody_listens_on_the_network(parent: LocalLink) -> None:
    with started(parent.address) as child:
        meet(parent)
        for clock, numel in enumerate((1, 1000, 1_000_000, 2_000_000)):
            echo(parent, torch.randn(numel), clock)
        for pid in (os.getpid(), child.pid):
            assert not [
                c
                for c in psutil.Process(pid).net_connections("inet")
                if c.status == psutil.CONN_LISTEN
            ]
        parent.send("child", Message("stop"))
        assert child.wait(WAIT_S) == 0


def test_a_state_larger_than_the_ring_travels_in_pieces(parent: LocalLink) -> None:
    with started(parent.address) as child:
        meet(parent)
        parent.send("child", Message("send state"))
        (state,) = parent.receive(kind="state", timeout_s=WAIT_S).tensors
        assert torch.equal(state, torch.arange(STATE_NUMEL, dtype=torch.float32))
        parent.send("child", Message("stop"))
        assert child.wait(WAIT_S) == 0


def test_scenario_20_a_zombie_of_another_run_is_refused_and_our_run_goes_on(
    parent: LocalLink,
) -> None:
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


def test_sending_goes_on_when_a_killed_peer_is_back_at_a_new_address(parent: LocalLink) -> None:
    with started(parent.address) as child:
        address = meet(parent)
        echo(parent, torch.ones(30_000), clock=1)
        child.send_signal(signal.SIGKILL)
        child.wait(WAIT_S)
    said = r"parent could not hand 'x' to child .*within 0.3 s: it could not be reached"
    with pytest.raises(LinkTimeoutError, match=said):
        parent.send("child", Message("x", (torch.ones(30_000),)), timeout_s=0.3)
    with started(parent.address) as child:
        assert meet(parent) != address
        echo(parent, torch.ones(30_000), clock=3)
        parent.send("child", Message("stop"))
        assert child.wait(WAIT_S) == 0
    assert parent.refused == 0


def test_a_newer_process_takes_the_name_of_one_that_still_lives(parent: LocalLink) -> None:
    with started(parent.address) as first:
        meet(parent)
        echo(parent, torch.ones(3), clock=1)
        with started(parent.address) as second:
            meet(parent)
            echo(parent, torch.ones(3), clock=2)
            parent.send("child", Message("stop"))
            assert second.wait(WAIT_S) == 0
        assert first.poll() is None


def test_a_peer_that_is_stopped_makes_the_sender_wait_and_not_the_end(parent: LocalLink) -> None:
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
        parent.close()
        assert time.monotonic() - start_s < 10


def test_what_strangers_say_is_refused_and_our_run_goes_on(parent: LocalLink) -> None:
    draw = random.Random(0)
    hello = Hello(True, RUN.encode(), b"identity", "stage 7").packet()
    with LocalLink("friend", RUN.encode()) as friend:
        friend.connect({"parent": parent.address})
        for first in (b"", b"x", draw.randbytes(900), hello):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(abstract(parent.address))
                if first:
                    stranger.send(first)
                # a ring comes with a hello, and what it says of blocks may be anything
                ring = SendRing(1 << 16, 4)
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
                    other.connect(abstract(parent.address))
                    socket.send_fds(other, [hello], [ring.descriptor])
                    for packet in (b"R", b"R" + b"\xff" * 40, b"I\x02\x00" + bytes(30), b"?" * 99):
                        other.send(packet)
                    friend.send("parent", Message("x", (torch.ones(1),)))
                    assert parent.receive(kind="x", sender="friend", timeout_s=WAIT_S)
                ring.close()
    assert parent.refused >= 4


def test_closing_gives_all_file_descriptors_and_threads_back() -> None:
    def use() -> None:
        with LocalLink("a", RUN.encode()) as a, LocalLink("b", RUN.encode()) as b:
            a.connect({"b": b.address, "nobody": "local://nobody"})
            a.send("b", Message("x", (torch.ones(100_000),)))
            b.receive(timeout_s=WAIT_S)
            with pytest.raises(LinkTimeoutError):
                a.send("nobody", Message("x"), timeout_s=0.01)

    use()
    me = psutil.Process()
    before = me.num_fds(), me.num_threads()
    for _ in range(3):
        use()
    assert (me.num_fds(), me.num_threads()) == before


def test_which_runs_have_it() -> None:
    assert is_local(parse_config({}))
    assert not is_local(parse_config({"link": {"bind": "tcp://127.0.0.1:5000"}}))
    assert not is_local(parse_config({"link": {"carrier": "zeromq"}}))
    with pytest.raises(ConfigError, match=r'link.carrier = "local" is for processes of one'):
        is_local(parse_config({"link": {"carrier": "local", "bind": "eth0"}}))
    with LocalLink("a", RUN.encode()) as a:
        with pytest.raises(ConfigError, match=r'set link.carrier = "zeromq" in all of them'):
            a.connect({"b": "tcp://127.0.0.1:5,6"})


if __name__ == "__main__":
    other_process(*sys.argv[1:])
