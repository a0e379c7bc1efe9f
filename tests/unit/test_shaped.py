"""A shaped link in virtual time: every arrival is arithmetic in rate, delay and sizes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch

import freewheel.transport.mailbox
import freewheel.transport.shaped
from freewheel.errors import ConfigError, LinkTimeoutError
from freewheel.transport.base import Link, Message, Traffic
from freewheel.transport.faults import Fault, FaultPlan
from freewheel.transport.shaped import ShapedLink


class Clock:
    """Stands in for the module ``time``: waiting is all that moves it."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


class InstantLink:
    """A link without any delay; a wait in vain moves the clock to its end."""

    def __init__(self, name: str, clock: Clock, network: dict[str, deque[Message]]) -> None:
        self.name, self.refused, self.traffic, self.address = name, 0, Traffic(), ""
        self._clock, self._network = clock, network
        network[name] = deque()

    def connect(self, peers: Mapping[str, str]) -> None: ...

    def interrupt_on(self, *kinds: str) -> None: ...

    def close(self, linger_s: float = 1.0) -> None: ...

    def send(self, to: str, message: Message, *, timeout_s: float = 60.0) -> None:
        self._network[to].append(replace(message, sender=self.name))
        self.traffic.sent(to, size(message))

    def receive(
        self, *, kind: str | None = None, sender: str | None = None, timeout_s: float = 60.0
    ) -> Message:
        if not self._network[self.name]:
            self._clock.now_s += timeout_s
            raise LinkTimeoutError("nothing")
        message = self._network[self.name].popleft()
        self.traffic.received(message.sender, size(message))
        return message


def size(message: Message) -> int:
    return 26 + sum(tensor.nbytes for tensor in message.tensors)


def on_a_wire(num_bytes: int) -> int:
    """Add what Ethernet, IP and TCP add: 14 + 20 + 32 bytes to each packet of 1448."""
    return num_bytes + 66 * math.ceil(num_bytes / 1448)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(freewheel.transport.shaped, "time", clock)
    monkeypatch.setattr(freewheel.transport.mailbox, "time", clock)
    return clock


def links(clock: Clock, *names: str, **settings: object) -> list[ShapedLink]:
    network: dict[str, deque[Message]] = {}
    settings = {"burst_bytes": 0} | settings
    inner: list[Link] = [InstantLink(name, clock, network) for name in names]
    return [ShapedLink(link, **settings) for link in inner]  # type: ignore[arg-type]  # any


def bulk(num_bytes: int, clock: int = 0) -> Message:
    return Message("bulk", (torch.zeros(num_bytes - 26, dtype=torch.uint8),), clock=clock)


def test_messages_arrive_one_after_the_other_at_the_rate_and_a_delay_later(clock: Clock) -> None:
    a, b = links(clock, "a", "b", rate_mbit=100, delay_ms=5)
    for number in range(4):
        a.send("b", bulk(125_000, number))
    assert clock.now_s == 100.0
    for number in range(4):
        assert b.receive(kind="bulk").clock == number
        expected_s = 100.0 + (number + 1) * on_a_wire(125_000) * 8 / 100e6 + 0.005
        assert clock.now_s == pytest.approx(expected_s, abs=1e-8)


def test_after_a_pause_a_burst_passes_at_once_and_then_the_rate_holds(clock: Clock) -> None:
    a, b = links(clock, "a", "b", rate_mbit=100, burst_bytes=50_000)
    for pause_s in (0.0, 1.0):
        clock.sleep(pause_s)
        start_s = clock.now_s
        for _ in range(4):
            a.send("b", bulk(40_000))
        for number in range(1, 5):
            b.receive()
            expected_s = max((number * on_a_wire(40_000) - 50_000) * 8 / 100e6, 0.0)
            assert clock.now_s - start_s == pytest.approx(expected_s, abs=1e-7)


def test_one_card_is_shared_by_all_to_whom_it_sends(clock: Clock) -> None:
    a, b, c = links(clock, "a", "b", "c", rate_mbit=10)
    a.send("b", bulk(10_000))
    a.send("c", bulk(10_000))
    c.receive()
    assert clock.now_s - 100 == pytest.approx(2 * on_a_wire(10_000) * 8 / 10e6)
    b.receive(timeout_s=0.0)


def test_several_senders_share_the_receivers_rate(clock: Clock) -> None:
    server, *workers = links(clock, "server", "a", "b", "c", rate_mbit=10, delay_ms=1)
    for worker in workers:
        worker.send("server", bulk(10_000))
    for count in (1, 2, 3):
        server.receive()
        expected_s = count * on_a_wire(10_000) * 8 / 10e6 + 0.001
        assert clock.now_s - 100 == pytest.approx(expected_s)


def test_a_message_on_its_way_does_not_hold_up_one_that_is_due(clock: Clock) -> None:
    server, far, near = links(clock, "server", "far", "near", rate_mbit=1000)
    slow = FaultPlan([Fault("delay", delay_ms=500)])
    far = ShapedLink(far, plan=slow)
    far._inner = far._inner._inner  # type: ignore[attr-defined]  # shaped once, by the plan
    far.send("server", Message("slow"))
    near.send("server", Message("fast"))
    assert server.receive(timeout_s=0.1).kind == "fast"
    assert clock.now_s < 100.01
    assert server.receive().kind == "slow"
    assert clock.now_s == pytest.approx(100.5, abs=0.001)


def test_control_waits_behind_bulk_for_no_longer_than_the_queue_is_deep(clock: Clock) -> None:
    a, b = links(clock, "a", "b", rate_mbit=10, queue_ms=50)
    a.send("b", bulk(1_000_000))  # 0.8 s
    a.send("b", Message("stop"))
    assert b.receive(kind="stop").kind == "stop"
    expected_s = 0.050 + 2 * on_a_wire(26) * 8 / 10e6
    assert clock.now_s - 100 == pytest.approx(expected_s, rel=0.01)
    b.receive(kind="bulk")
    assert clock.now_s - 100 == pytest.approx(on_a_wire(1_000_000) * 8 / 10e6, rel=0.001)


def test_the_sender_waits_while_its_card_has_more_than_its_buffer(clock: Clock) -> None:
    a, _ = links(clock, "a", "b", rate_mbit=8, buffer_bytes=100_000)
    a.send("b", bulk(300_000))
    assert clock.now_s == 100.0
    with pytest.raises(LinkTimeoutError, match=r"a could not hand 'bulk' to b within 0\.05 s"):
        a.send("b", bulk(1000), timeout_s=0.05)
    a.send("b", bulk(1000))
    assert clock.now_s - 100 == pytest.approx((on_a_wire(300_000) - 100_000) * 8 / 8e6)


def test_jitter_is_bounded_keeps_order_and_is_the_same_for_the_same_seed(clock: Clock) -> None:
    def arrivals(seed: int) -> list[float]:
        start_s = clock.now_s
        a, b = links(clock, "a", "b", delay_ms=10, jitter_ms=20, seed=seed)
        for number in range(30):
            a.send("b", Message("x", clock=number))
        times = []
        for number in range(30):
            assert b.receive().clock == number
            times.append(round(clock.now_s - start_s, 6))
        return times

    first = arrivals(1)
    assert 0.010 <= min(first) <= max(first) <= 0.030001
    assert len(set(first)) > 1
    assert arrivals(1) == first
    assert arrivals(2) != first


def test_what_is_dropped_was_sent_all_the_same_and_does_not_arrive(clock: Clock) -> None:
    plan = FaultPlan([Fault("drop", to="b", kind="push", first=2, last=3)])
    a, b = links(clock, "a", "b", plan=plan)
    for number in range(5):
        a.send("b", Message("push", clock=number))
        a.send("b", Message("other", clock=number))
    came = [b.receive() for _ in range(8)]
    assert [m.clock for m in came if m.kind == "push"] == [0, 3, 4]
    assert [m.clock for m in came if m.kind == "other"] == [0, 1, 2, 3, 4]
    with pytest.raises(LinkTimeoutError):
        b.receive(timeout_s=1.0)
    assert (a.traffic.total_sent().messages, b.traffic.total_received().messages) == (10, 8)
    assert a.traffic.total_sent().num_bytes == 10 * 26


def test_a_cut_holds_messages_until_it_heals_and_loses_them_if_it_does_not(clock: Clock) -> None:
    heals = FaultPlan([Fault("cut", from_s=1.0, until_s=3.0)])
    a, b = links(clock, "a", "b", plan=heals)
    a.send("b", Message("before"))
    clock.sleep(1.5)
    a.send("b", Message("during"))
    assert b.receive().kind == "before"
    assert b.receive().kind == "during"
    assert clock.now_s == pytest.approx(103.0)
    a.send("b", Message("after"))
    assert b.receive(timeout_s=0.1).kind == "after"
    stays = FaultPlan([Fault("cut", from_s=1.0)])
    a, b = links(clock, "a", "b", plan=stays)
    clock.sleep(2.0)
    a.send("b", Message("during"))
    with pytest.raises(LinkTimeoutError):
        b.receive(timeout_s=1000.0)


def test_what_is_corrupted_is_refused_and_counted_and_the_rest_arrives(clock: Clock) -> None:
    plan = FaultPlan([Fault("corrupt", first=2, last=2)])
    a, b = links(clock, "a", "b", plan=plan)
    for number in range(3):
        a.send("b", bulk(1000, number))
    assert [b.receive().clock for _ in range(2)] == [0, 2]
    assert (a.refused, b.refused) == (0, 1)


def test_a_flipped_bit_arrives_unseen_and_leaves_the_senders_tensor_alone(clock: Clock) -> None:
    a, b = links(clock, "a", "b", plan=FaultPlan([Fault("flip", last=1)]))
    tensor = torch.zeros(4, 100, dtype=torch.int32).t()
    a.send("b", Message("x", (torch.empty(0), tensor)))
    a.send("b", Message("control"))
    came = b.receive(kind="x").tensors[1]
    (changed,) = came[came != 0].tolist()
    assert abs(changed) in [2**bit for bit in range(32)]
    assert not tensor.any()
    assert b.refused == 0


def test_a_share_of_messages_is_drawn_by_the_seed() -> None:
    plan = FaultPlan([Fault("drop", share=0.3)])

    def lost(seed: int) -> list[bool]:
        trial = plan.start(seed)
        return [trial.judge("a", "b", Message("x"), 0.0).lost for _ in range(2000)]

    assert lost(1) == lost(1)
    assert lost(1) != lost(2)
    # 600 expected, standard deviation 20.5
    assert abs(sum(lost(1)) - 600) < 5 * 20.5


def test_faults_on_one_message_add_up() -> None:
    plan = FaultPlan([Fault("delay", delay_ms=5), Fault("delay", sender="a", delay_ms=7)])
    verdicts = [plan.start(0).judge(sender, "b", Message("x"), 0.0) for sender in "ac"]
    assert [v.delay_s for v in verdicts] == [pytest.approx(0.012), 0.005]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"action": "dorp"}, "did you mean 'drop'"),
        ({"action": "drop", "first": 0}, "1 <= first <= last"),
        ({"action": "drop", "first": 3, "last": 2}, "1 <= first <= last"),
        ({"action": "cut", "from_s": 2, "until_s": 1}, "from_s < until_s"),
        ({"action": "drop", "share": 1.5}, r"share in \[0, 1\]"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Fault(**settings)  # type: ignore[arg-type]  # what a user may write


@pytest.mark.parametrize("settings", [{"rate_mbit": 0}, {"delay_ms": -1}, {"jitter_ms": -1}])
def test_a_shape_that_cannot_be_is_refused(settings: dict[str, float], clock: Clock) -> None:
    with pytest.raises(ConfigError, match="must be"):
        links(clock, "a", **settings)
