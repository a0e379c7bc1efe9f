"""What every ``Link`` must do, whatever carries it. Scenarios 10 and 13, and the small half of 22.

A carrier of your own passes it when it is added to ``CARRIERS``: a function from a directory, the
names of the links, and the bytes of a piece, to connected links.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import pytest
import torch

from freewheel.errors import LinkError, LinkTimeoutError
from freewheel.transport.base import EVALUATE, Interrupted, Link, Message
from freewheel.transport.collective import CollectiveLink, gloo_group
from freewheel.transport.inproc import InprocHub
from freewheel.transport.local import LocalLink
from freewheel.transport.schema import Limits
from freewheel.transport.shaped import ShapedLink
from freewheel.transport.zeromq import ZmqLink

QUEUE = 8
HEADER_BYTES = 24
WAIT_S = 20.0

Links = dict[str, Link]
Carrier = Callable[[Path, list[str], Limits], Links]


def _inproc(_: Path, names: list[str], limits: Limits) -> Links:
    hub = InprocHub(QUEUE, limits)
    return {name: hub.link(name) for name in names}


def _zeromq(_: Path, names: list[str], limits: Limits) -> Links:
    run_id = os.urandom(8)
    return {name: ZmqLink(name, run_id, queue_messages=QUEUE, limits=limits) for name in names}


def _local(_: Path, names: list[str], limits: Limits) -> Links:
    run_id = os.urandom(8)
    return {name: LocalLink(name, run_id, queue_messages=QUEUE, limits=limits) for name in names}


def _collective(path: Path, names: list[str], limits: Limits) -> Links:
    def make(rank: int) -> Link:
        group = gloo_group(path / "store", rank, len(names))
        return CollectiveLink(names[rank], b"run-0001", group, queue_messages=QUEUE, limits=limits)

    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(make, range(len(names))), strict=True))


def _shaped(carrier: Carrier) -> Carrier:
    def make(path: Path, names: list[str], limits: Limits) -> Links:
        inner = carrier(path, names, limits)
        return {name: ShapedLink(link, 2000, 1.0, jitter_ms=1.0) for name, link in inner.items()}

    return make


CARRIERS: dict[str, Carrier] = {
    "inproc": _inproc,
    "zeromq": _zeromq,
    "local": _local,
    "collective": _collective,
    "shaped inproc": _shaped(_inproc),
    "shaped zeromq": _shaped(_zeromq),
    "shaped local": _shaped(_local),
}

Network = Callable[..., list[Link]]


@pytest.fixture(params=CARRIERS)
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Network]:
    """Make connected links of these names; a peer may be left out of ``connect``."""
    made: list[Link] = []

    def make(*names: str, piece_bytes: int = 1 << 20) -> list[Link]:
        links = CARRIERS[request.param](tmp_path, list(names), Limits(piece_bytes=piece_bytes))
        made.extend(links.values())
        for name, link in links.items():
            link.connect({other: links[other].address for other in names if other != name})
        return list(links.values())

    yield make
    # All at once: a process group takes leave together.
    with ThreadPoolExecutor(max(len(made), 1)) as pool:
        list(pool.map(lambda link: link.close(), made))


def _bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def _tensors() -> dict[str, torch.Tensor]:
    """Return one tensor of each sort that has ever gone wrong somewhere."""
    draw = torch.Generator().manual_seed(0)
    real = torch.randn(2, 3, 4, 5, generator=draw)
    same = {
        str(dtype): real.to(dtype)
        for dtype in (
            *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
            *(torch.float8_e4m3fn, torch.float8_e5m2),
            *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
        )
    }
    return same | {
        "uint16": torch.tensor([0, 65_535], dtype=torch.uint16),
        "complex64": torch.complex(real, -real),
        "complex128, conjugate": torch.complex(real, real).to(torch.complex128).conj(),
        "not finite": torch.tensor([float("nan"), float("inf"), -0.0]),
        "zero dimensions": torch.tensor(3.5),
        "zero elements": torch.empty(0, 7),
        "transposed": real[0, 0].t(),
        "every other": real[..., ::2],
        "expanded": torch.tensor([1.0]).expand(3, 4),
        "channels last": real.to(memory_format=torch.channels_last),
        "requires grad": (real * 2).requires_grad_() * 3,
        "parameter": torch.nn.Parameter(real),
        "large": torch.randn(300, 301, generator=draw),
    }


def test_scenarios_10_and_13_every_dtype_and_layout_arrives_bit_for_bit(network: Network) -> None:
    a, b = network("stage 0", "stage 1", piece_bytes=100_000)
    for name, tensor in _tensors().items():
        a.send("stage 1", Message(name, (tensor,)))
        (came,) = b.receive(kind=name, timeout_s=WAIT_S).tensors
        assert (came.dtype, came.shape) == (tensor.dtype, tensor.shape), name
        assert _bits(came) == _bits(tensor), name
    together = tuple(_tensors().values())
    a.send("stage 1", Message("all", together))
    for name, came, tensor in zip(
        _tensors(), b.receive(timeout_s=WAIT_S).tensors, together, strict=True
    ):
        assert (came.dtype, came.shape, _bits(came)) == (tensor.dtype, tensor.shape, _bits(tensor))
        assert came.is_contiguous(), name


def test_everything_that_is_no_tensor_arrives_too(network: Network) -> None:
    a, b = network("replica 0", "server 0")
    tree = ["dict", [["w", ["tensor", False]]]]
    meta = {"loss": 0.5, "versions": [1, 2], "note": None}
    top = 2**32 - 1
    sent = Message("push", (torch.ones(2),), tree, top, 65_535, top, meta)
    a.send("server 0", sent)
    came = b.receive(timeout_s=WAIT_S)
    assert (came.kind, came.tree, came.clock) == (sent.kind, sent.tree, sent.clock)
    assert (came.index, came.num_samples) == (sent.index, sent.num_samples)
    assert (came.meta, came.sender) == (sent.meta, "replica 0")
    assert came.deliver_at_ns == 0


def test_the_receiver_may_write_to_what_it_got(network: Network) -> None:
    a, b = network("a", "b")
    for numel in (3, 100_000, 1_000_000):
        sent = torch.ones(numel)
        a.send("b", Message("x", (sent, sent)))
        first, second = b.receive(timeout_s=WAIT_S).tensors
        first.zero_()
        assert sent.sum() == numel
        assert second.sum() == numel


def test_order_holds_from_one_peer_within_each_sort(network: Network) -> None:
    a, b = network("a", "b")
    for clock in range(3 * QUEUE):
        if clock >= QUEUE:
            assert b.receive(kind="bulk", timeout_s=WAIT_S).clock == clock - QUEUE
            assert b.receive(kind="control", timeout_s=WAIT_S).clock == clock - QUEUE
        a.send("b", Message("bulk", (torch.zeros(1 + 5000 * (clock % 3)),), clock=clock))
        a.send("b", Message("control", clock=clock))
    for clock in range(2 * QUEUE, 3 * QUEUE):
        assert b.receive(kind="bulk", timeout_s=WAIT_S).clock == clock
        assert b.receive(kind="control", timeout_s=WAIT_S).clock == clock


def test_receive_from_anyone_and_by_kind_and_sender(network: Network) -> None:
    server, *workers = network("server 0", "replica 0", "replica 1", "replica 2")
    for worker in workers:
        worker.send("server 0", Message("push", (torch.ones(4),)))
        worker.send("server 0", Message("pull"))
    assert server.receive(kind="push", sender="replica 2", timeout_s=WAIT_S).sender == "replica 2"
    pulls = [server.receive(kind="pull", timeout_s=WAIT_S).sender for _ in workers]
    assert sorted(pulls) == ["replica 0", "replica 1", "replica 2"]
    rest = [server.receive(timeout_s=WAIT_S) for _ in range(2)]
    assert sorted((m.sender, m.kind) for m in rest) == [
        ("replica 0", "push"),
        ("replica 1", "push"),
    ]
    with pytest.raises(LinkTimeoutError):
        server.receive(timeout_s=0.0)


def test_a_timeout_says_who_waited_for_what_from_whom_and_what_came_instead(
    network: Network,
) -> None:
    a, b = network("stage 0", "stage 1")
    start_s = time.monotonic()
    with pytest.raises(LinkTimeoutError, match=r"stage 1 waited 0\.2 s for 'forward' from stage 0"):
        b.receive(kind="forward", sender="stage 0", timeout_s=0.2)
    assert time.monotonic() - start_s >= 0.2
    a.send("stage 1", Message("backward"))
    with pytest.raises(LinkTimeoutError, match=r"from anyone .*1 'backward' from stage 0"):
        b.receive(kind="forward", timeout_s=2.0)
    assert b.receive(timeout_s=WAIT_S).kind == "backward"


def test_an_unknown_peer_is_named_with_the_nearest(network: Network) -> None:
    a, _ = network("stage 0", "stage 1")
    with pytest.raises(LinkError, match="stage 0 knows no peer 'stage 11'; did you mean 'stage 1'"):
        a.send("stage 11", Message("forward"))


def test_scenario_22_what_is_larger_than_a_piece_arrives_whole(network: Network) -> None:
    a, b = network("a", "b", piece_bytes=64 << 10)
    draw = torch.Generator().manual_seed(1)
    tensors = (
        torch.randint(0, 256, (200_001,), dtype=torch.uint8, generator=draw),
        torch.randn(33_333, dtype=torch.float64, generator=draw),
        torch.randn(7, generator=draw),
        torch.randint(0, 9, (65_536,), generator=draw),
    )

    def send() -> None:
        for clock in range(3):
            a.send("b", Message("state", tensors, clock=clock, meta={"version": 7}))
        a.send("b", Message("small", (torch.ones(1),)))

    thread = threading.Thread(target=send)
    thread.start()
    for clock in range(3):
        came = b.receive(kind="state", timeout_s=WAIT_S)
        assert (came.clock, came.meta) == (clock, {"version": 7})
        assert all(torch.equal(x, y) for x, y in zip(came.tensors, tensors, strict=True))
    assert b.receive(timeout_s=WAIT_S).kind == "small"
    thread.join()
    assert a.traffic.total_sent().messages == b.traffic.total_received().messages == 4
    assert a.traffic.total_sent().num_bytes == b.traffic.total_received().num_bytes
    assert b.refused == 0


def test_a_slow_reader_makes_the_sender_wait_and_memory_stays_bounded(network: Network) -> None:
    a, b = network("a", "b")
    tensor = torch.zeros(250_000)  # 1 MB
    clocks = itertools.count()

    def send_until_full() -> None:
        for clock in clocks:
            a.send("b", Message("bulk", (tensor,), clock=clock), timeout_s=0.3)

    with pytest.raises(LinkTimeoutError, match=r"a could not hand 'bulk' to b.* within 0\.[23]"):
        send_until_full()
    sent = next(clocks) - 1
    # both queues, and what the kernel's socket buffers and a shaped card hold
    assert QUEUE <= sent <= 2 * QUEUE + 32
    a.send("b", Message("control"), timeout_s=WAIT_S)
    assert b.receive(kind="control", timeout_s=WAIT_S).sender == "a"
    for clock in range(sent):
        assert b.receive(timeout_s=WAIT_S).clock == clock
    a.send("b", Message("bulk", (tensor,), clock=7), timeout_s=WAIT_S)
    assert b.receive(timeout_s=WAIT_S).clock == 7


def test_two_that_send_more_than_all_queues_hold_do_not_block_each_other(network: Network) -> None:
    links = network("a", "b")
    count = 8 * QUEUE
    tensor = torch.ones(250_000)

    def work(link: Link, other: str) -> list[int]:
        for clock in range(count):
            link.send(other, Message("bulk", (tensor,), clock=clock), timeout_s=WAIT_S)
        return [link.receive(timeout_s=WAIT_S).clock for _ in range(count)]

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(work, links, ["b", "a"]))
    assert results == [list(range(count))] * 2


def test_bytes_are_header_payload_and_framing_and_the_schema_once(network: Network) -> None:
    a, b = network("a", "b")

    def framed(*sizes: int) -> int:
        return sum(size + (2 if size <= 255 else 9) for size in sizes)

    def schema(kind: str, *shapes: list[int]) -> int:
        return len(msgpack.packb([kind, None, [["float32", shape] for shape in shapes]]))

    expected = 0
    for message, *sizes in (
        (Message("x", (torch.ones(8, 4),)), HEADER_BYTES + 128, schema("x", [8, 4])),
        (Message("x", (torch.ones(8, 4),), clock=9), HEADER_BYTES + 128),
        (Message("x", (torch.ones(5, 4),)), HEADER_BYTES + 80, schema("x", [5, 4])),
        (Message("x", (torch.ones(8, 4),)), HEADER_BYTES + 128),
        (Message("x", (torch.ones(5, 4),)), HEADER_BYTES + 80),
        (Message("stop"), HEADER_BYTES, schema("stop")),
        (Message("stop"), HEADER_BYTES),
        (Message("stop", meta={"why": "end"}), HEADER_BYTES, len(msgpack.packb({"why": "end"}))),
        (Message("y", (torch.ones(100_000),)), HEADER_BYTES, schema("y", [100_000]), 400_000),
        (Message("y", (torch.ones(100_000),)), HEADER_BYTES, 400_000),
        (Message("z", (torch.ones(4),) * 2), HEADER_BYTES + 32, schema("z", [4], [4])),
        # 1.2 MB in pieces of 1 MiB, each with eight bytes more of header
        (Message("p", (torch.ones(300_000),)), 32, schema("p", [300_000]), 1 << 20, 32, 151_424),
    ):
        expected += framed(*sizes)
        a.send("b", message)
        b.receive(timeout_s=WAIT_S)
        assert a.traffic.total_sent().num_bytes == expected, message.kind
        assert b.traffic.total_received().num_bytes == expected, message.kind
    assert a.traffic.total_sent().messages == b.traffic.total_received().messages == 12
    with a.traffic.counting(EVALUATE), b.traffic.counting(EVALUATE):
        a.send("b", Message("stop"))
        b.receive(timeout_s=WAIT_S)
    assert a.traffic.total_sent(EVALUATE).num_bytes == HEADER_BYTES + 2
    assert b.traffic.total_received(EVALUATE).num_bytes == HEADER_BYTES + 2
    assert a.traffic.total_sent().num_bytes == expected


def test_an_interrupting_message_ends_any_wait_and_no_other(network: Network) -> None:
    a, b, c = network("a", "b", "coordinator")
    b.interrupt_on("stop")
    c.send("b", Message("stop", meta={"why": "done"}))
    with pytest.raises(Interrupted) as caught:
        b.receive(kind="forward", sender="a", timeout_s=WAIT_S)
    assert (caught.value.message.sender, caught.value.message.meta) == (
        "coordinator",
        {"why": "done"},
    )
    a.send("b", Message("forward", (torch.ones(1),)))
    assert b.receive(timeout_s=WAIT_S).kind == "forward"
    c.send("b", Message("stop"))
    assert b.receive(kind="stop", timeout_s=WAIT_S).kind == "stop"


def test_an_interrupting_message_ends_a_send_that_blocks(network: Network) -> None:
    a, b = network("a", "b")
    a.interrupt_on("stop")
    tensor = torch.zeros(250_000)

    def send_for_ever() -> None:
        for _ in range(1000):
            a.send("b", Message("bulk", (tensor,)), timeout_s=WAIT_S)

    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(send_for_ever)
        b.receive(kind="bulk", timeout_s=WAIT_S)
        b.send("a", Message("stop"))
        with pytest.raises(Interrupted):
            sending.result(timeout=WAIT_S)


def test_closing_twice_is_safe_and_a_closed_link_says_so(network: Network) -> None:
    a, b = network("stage 0", "stage 1")
    a.send("stage 1", Message("forward", (torch.ones(4),)))
    b.receive(timeout_s=WAIT_S)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda link: link.close(), (a, b)))
    a.close()
    for use in (lambda: a.send("stage 1", Message("x")), lambda: a.receive(timeout_s=0.1)):
        with pytest.raises(LinkError, match="link of stage 0 is closed"):
            use()
