"""Turns, clocks and links of runs in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from freewheel.errors import LinkError, LinkTimeoutError, WorkerError
from freewheel.runtime.virtual.network import VirtualLink, VirtualNetwork
from freewheel.runtime.virtual.turns import Turns
from freewheel.simulate.link import LinkSpec
from freewheel.transport.base import COORDINATOR, EVALUATE, Interrupted, Message


def network(rate_mbit: float | None = None, delay_ms: float = 0.0) -> VirtualNetwork:
    return VirtualNetwork(LinkSpec(rate_mbit, delay_ms), lambda *_: None)


def test_one_runs_at_a_time_and_always_in_the_same_order() -> None:
    def once() -> list[str]:
        turns, seen, inside = Turns(), list[str](), threading.Semaphore(1)

        def piece(name: str, other: str) -> Callable[[], None]:
            def run() -> None:
                for _ in range(20):
                    assert inside.acquire(blocking=False), "two at a time"
                    seen.append(name)
                    inside.release()
                    turns.wake(other, "word", name)
                    if len(seen) < 39:
                        turns.wait(name, ("word", other))

            return run

        turns.run({"a": piece("a", "b"), "b": piece("b", "a")}, {})
        return seen

    assert once() == ["a", "b"] * 20
    assert once() == once()


def test_each_has_random_numbers_of_its_own() -> None:
    turns, drawn = Turns(), dict[str, list[float]]()

    def piece(name: str, other: str) -> Callable[[], None]:
        def run() -> None:
            drawn[name] = []
            for turn in range(5):
                drawn[name].append(float(torch.rand(())))
                turns.wake(other, "word", name)
                if turn < 4:
                    turns.wait(name, (None, None))

        return run

    states = {name: torch.Generator().manual_seed(i).get_state() for i, name in enumerate("ab")}
    before = torch.get_rng_state()
    turns.run({"a": piece("a", "b"), "b": piece("b", "a")}, states)
    assert torch.equal(torch.get_rng_state(), before)
    for i, name in enumerate("ab"):
        generator = torch.Generator().manual_seed(i)
        assert drawn[name] == [float(torch.rand((), generator=generator)) for _ in range(5)]


def test_where_all_wait_the_run_ends_with_who_waits_for_what() -> None:
    turns = Turns()
    pieces = {
        "stage 0": lambda: turns.wait("stage 0", ("backward", "stage 1")),
        "stage 1": lambda: turns.wait("stage 1", ("forward", "stage 0")),
    }
    with pytest.raises(WorkerError, match="stage 0 for 'backward' from stage 1, stage 1 for 'for"):
        turns.run(pieces, {})


def test_an_error_of_one_ends_all_and_is_raised() -> None:
    turns, ended = Turns(), list[str]()

    def waits() -> None:
        try:
            turns.wait("b", (None, None))
        finally:
            ended.append("b")

    def fails() -> None:
        raise ValueError("of a")

    with pytest.raises(ValueError, match="of a"):
        turns.run({"b": waits, "a": fails}, {})
    assert ended == ["b"]


def test_a_card_sends_one_message_after_the_other() -> None:
    joined = network(rate_mbit=8.0, delay_ms=100.0)  # a byte a microsecond
    a, b = joined.open("stage 0"), joined.open("stage 1")
    arrivals = []
    for _ in range(3):
        a.send("stage 1", Message("forward", (torch.zeros(2500),)))
    for _ in range(3):
        b.receive(kind="forward", sender="stage 0")
        arrivals.append(b.clock.now_s)
    gaps = [later - sooner for sooner, later in zip([0.1, *arrivals], arrivals, strict=False)]
    assert gaps == pytest.approx([0.010] * 3, rel=0.02)
    sent, received = a.traffic.total_sent(), b.traffic.total_received()
    assert sent == received
    assert a.clock.now_s == 0.0


def test_scoring_takes_no_time_and_words_to_the_coordinator_no_bytes() -> None:
    heard = []
    joined = VirtualNetwork(LinkSpec(1.0, 100.0), lambda *said: heard.append(said))
    a, b = joined.open("stage 0"), joined.open("stage 1")
    with a.traffic.counting(EVALUATE):
        a.send("stage 1", Message("score", (torch.zeros(1000),)))
    b.receive(kind="score")
    assert b.clock.now_s == 0.0
    a.clock.spend(2.0)
    a.send(COORDINATOR, Message("records", meta={"rows": []}))
    ((message, at_s),) = heard
    assert (message.sender, message.kind, at_s) == ("stage 0", "records", 2.0)
    assert a.traffic.total_sent().num_bytes == 0


def test_what_arrives_may_be_written_to() -> None:
    joined = network()
    a, b = joined.open("stage 0"), joined.open("stage 1")
    mine = torch.ones(20_000)
    a.send("stage 1", Message("forward", (mine,)))
    b.receive(kind="forward").tensors[0].zero_()
    assert bool((mine == 1).all())


def test_a_link_refuses_as_any_other() -> None:
    joined = network()
    link: VirtualLink = joined.open("stage 0")
    with pytest.raises(LinkError, match="knows no peer 'stage 7'"):
        link.send("stage 7", Message("forward"))
    with pytest.raises(LinkTimeoutError, match="none came"):
        link.receive(kind="wish", timeout_s=0.0)
    link.interrupt_on("stop")
    joined.open("stage 1").send("stage 0", Message("stop"))
    with pytest.raises(Interrupted):
        link.receive(kind="wish", timeout_s=0.0)
    link.close()
    with pytest.raises(LinkError, match="closed"):
        link.receive(timeout_s=0.0)
