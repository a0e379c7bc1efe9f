"""The link on a process group between real processes: where it listens, and what a death does.

Run as a script, this file is the other process: ``python FILE STORE RANK WORLD_SIZE``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from freewheel.errors import ConfigError, LinkError, LinkTimeoutError
from freewheel.transport.base import Message
from freewheel.transport.collective import CollectiveLink, gloo_group

RUN = b"run-0001"
WAIT_S = 60.0


def other_process(store: str, rank: str, world_size: str) -> None:
    with CollectiveLink("child", RUN, gloo_group(Path(store), int(rank), int(world_size))) as link:
        link.connect({"parent": "rank://0"})
        link.send("parent", Message("hello"))
        while (message := link.receive(timeout_s=WAIT_S)).kind != "stop":
            link.send("parent", message)


def start(store: Path) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-W", "error", __file__, str(store), "1", "2"]
    return subprocess.Popen(argv, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_messages_cross_listening_on_loopback_only_and_both_take_leave(tmp_path: Path) -> None:
    with start(tmp_path / "store") as child:
        try:
            with CollectiveLink("parent", RUN, gloo_group(tmp_path / "store", 0, 2)) as link:
                link.connect({"child": "rank://1"})
                link.receive(kind="hello", timeout_s=WAIT_S)
                tensor = torch.randn(3_000_000)  # in pieces
                link.send("child", Message("echo", (tensor,)))
                assert torch.equal(link.receive(timeout_s=WAIT_S).tensors[0], tensor)
                for pid in (os.getpid(), child.pid):
                    connections = psutil.Process(pid).net_connections("inet")
                    assert connections
                    assert {c.laddr.ip for c in connections} <= {"127.0.0.1"}
                link.send("child", Message("stop"))
                assert child.wait(WAIT_S) == 0
        finally:
            child.kill()


def test_a_peer_that_died_is_named_and_closing_does_not_wait_for_it(tmp_path: Path) -> None:
    with start(tmp_path / "store") as child:
        link = CollectiveLink("parent", RUN, gloo_group(tmp_path / "store", 0, 2))
        link.connect({"child": "rank://1"})
        link.receive(kind="hello", timeout_s=WAIT_S)
        child.send_signal(signal.SIGKILL)
        child.wait(WAIT_S)

        def send_until_lost() -> None:
            deadline = time.monotonic() + WAIT_S
            while time.monotonic() < deadline:
                link.send("child", Message("echo", (torch.ones(1),)), timeout_s=WAIT_S)

        with pytest.raises(LinkError, match=r"parent lost child: .*start a new run"):
            send_until_lost()
        start_s = time.monotonic()
        link.close(linger_s=1.0)
        assert time.monotonic() - start_s < 10


def test_a_rank_that_does_not_come_is_missed_at_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(LinkTimeoutError, match="rank 0 of 2 did not meet the others"):
        gloo_group(tmp_path / "store", 0, 2, timeout_s=0.5)


def test_an_address_that_is_no_rank_of_the_group_is_refused(tmp_path: Path) -> None:
    with CollectiveLink("parent", RUN, gloo_group(tmp_path / "store", 0, 1)) as link:
        with pytest.raises(ConfigError, match=r"did you mean 'rank://0'"):
            link.connect({"child": "rank://1"})
        link.connect({"parent": "rank://0"})
        with pytest.raises(LinkError, match="knows no peer 'parent'"):
            link.send("parent", Message("x"))


if __name__ == "__main__":
    other_process(*sys.argv[1:])
