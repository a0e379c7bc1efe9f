"""Virtual time against closed forms: rates, links, stragglers, deaths, switches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from freewheel.errors import ConfigError, WorkerError
from freewheel.protocols import Machine, Protocol, protocols
from freewheel.protocols.base import Action, Event, StepDone
from freewheel.protocols.card import Card
from freewheel.protocols.members import Central
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import (
    Grant,
    Granted,
    Joined,
    Layout,
    Pushed,
    Reduced,
    SendPull,
    SendPush,
    Start,
    SwitchTopology,
)
from freewheel.simulate import (
    Budget,
    Compute,
    CostOnly,
    Fault,
    LinkSpec,
    Observer,
    Result,
    Simulation,
    Stragglers,
    Transient,
)
from freewheel.simulate.link import HEADER_BYTES

NO_CARD = Card("", "", "", "", "", "", "")


def run(
    name: str,
    workers: int = 4,
    steps: int = 50,
    compute: Compute | None = None,
    num_bytes: int = 0,
    settings: Mapping[str, Any] | None = None,
    shared: bool = True,
    **more: Any,
) -> Result:
    work = CostOnly(Budget(steps, workers, shared), num_bytes)
    protocol = protocols.create(name, settings)
    return Simulation(protocol, work, workers, compute or Compute(1.0), **more).run()


def test_bsp_waits_for_the_slowest_at_every_step() -> None:
    """Scenario 21: homogeneous T = S c; one straggler makes every step as long as its own."""
    assert run("bsp").virtual_s == pytest.approx(50.0)
    slow = run("bsp", compute=Compute(1.0, Stragglers(1, 4.0)))
    assert slow.virtual_s == pytest.approx(200.0)
    # The three others wait 3 of 4 seconds each.
    assert sum(slow.wait_s.values()) == pytest.approx(3 * 3 * 50)


def test_asp_runs_at_the_sum_of_the_rates() -> None:
    result = run("asp", steps=500, compute=Compute(1.0, Stragglers(1, 4.0)))
    rate = 3 / 1.0 + 1 / 4.0
    assert 2000 / rate <= result.virtual_s <= 2000 / rate + 4.0
    assert result.wait_s == dict.fromkeys(range(4), 0.0)


def test_the_pilot_setting_is_as_fast_as_its_rates_say() -> None:
    """8 workers, 2 of them 4x slower: asynchronous is 6.5 / 2 = 3.25 times as fast."""
    slow = Compute(1.0, Stragglers(2, 4.0))
    bsp, asp = (run(name, 8, 400, slow).virtual_s for name in ("bsp", "asp"))
    assert bsp / asp == pytest.approx(3.25, rel=0.01)


def test_ssp_lies_between() -> None:
    slow = Compute(1.0, Stragglers(1, 4.0))
    times = [run("asp", 4, 100, slow).virtual_s]
    times += [run("ssp", 4, 100, slow, settings={"staleness": s}).virtual_s for s in (8, 2, 0)]
    times.append(run("bsp", 4, 100, slow).virtual_s)
    assert times == sorted(times)
    assert times[0] < times[1] < times[-1]


def test_local_sgd_exchanges_every_k_steps() -> None:
    result = run("local_sgd", settings={"k": 5}, num_bytes=1000)
    assert result.version == 10
    # 9 replies: after the last round nobody has samples left, but all are answered first.
    push_and_reply = 10 * 4 * 2
    assert sum(result.messages_sent.values()) == push_and_reply + 4  # and one goodbye each


@pytest.mark.parametrize("servers", [1, 2])
def test_bsp_over_a_link_is_the_closed_form(servers: int) -> None:
    """A round: compute, N pushes into the servers' interfaces, the delay, N replies out, the delay.

    The last reply of a round leaves after N transfers, and the last push of the next round needs
    its own transfer, behind nobody; with P servers a node's interface is P times as fast, but a
    worker's own is not.
    """
    workers, steps, compute_s = 4, 10, 1.0
    link, num_bytes = LinkSpec(100.0, 5.0), 1_000_000
    worker_s = link.transfer_s(num_bytes + servers * HEADER_BYTES)
    server_s, delay_s = worker_s / servers, link.delay_s
    # All push at once: the last of N has arrived after N server transfers, but the first not
    # before its own worker has sent it.
    first = compute_s + delay_s + worker_s + (workers - 1) * server_s
    # The last of N replies begins after N - 1 server transfers and takes its worker's transfer.
    later = (workers - 1) * server_s + worker_s + compute_s + worker_s + 2 * delay_s
    result = run("bsp", workers, steps, num_bytes=num_bytes, link=link, num_servers=servers)
    expected = first + (steps - 1) * later
    assert result.virtual_s == pytest.approx(expected, rel=1e-9)
    one_way = workers * steps * (num_bytes + servers * HEADER_BYTES)
    goodbyes = workers * servers * HEADER_BYTES
    assert sum(result.bytes_sent.values()) == 2 * one_way + goodbyes
    assert sum(result.bytes_received.values()) == 2 * one_way + goodbyes


def test_a_server_that_is_the_bottleneck_sets_the_rate_of_asp() -> None:
    """8 workers that compute in no time: one push per transfer into the server's interface."""
    link, num_bytes = LinkSpec(100.0, 0.0), 1_000_000
    transfer_s = link.transfer_s(num_bytes + HEADER_BYTES)
    result = run("asp", 8, 50, Compute(0.0), num_bytes, link=link)
    assert result.virtual_s == pytest.approx(400 * transfer_s, rel=0.01)
    busy = run("asp", 8, 50, Compute(0.0), server_s=0.25)
    assert busy.virtual_s == pytest.approx(400 * 0.25)


def test_all_reduce_is_a_ring() -> None:
    workers, steps, link, num_bytes = 4, 10, LinkSpec(100.0, 5.0), 1_000_000
    part = num_bytes // workers + HEADER_BYTES
    ring_s = 2 * (workers - 1) * (link.transfer_s(part) + link.delay_s)
    result = run("all_reduce", workers, steps, num_bytes=num_bytes, link=link)
    assert result.virtual_s == pytest.approx(steps * (1.0 + ring_s))
    goodbye = HEADER_BYTES
    assert result.bytes_sent[0] == steps * 2 * (workers - 1) * part + goodbye


def test_transient_stragglers_and_jitter_have_their_means() -> None:
    """E[d] = (1 + p (f - 1)) exp(sigma^2 / 2)."""
    pace = Compute(1.0, transient=Transient(0.05, 5.0), jitter=0.1)
    result = run("asp", 2, 4000, pace)
    assert sum(result.compute_s.values()) / 8000 == pytest.approx(1.2 * 1.00501, rel=0.03)


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def of(seed: int) -> Result:
        return run("asp", 4, 20, Compute(1.0, jitter=0.3, seed=seed), link=LinkSpec(1.0, 1.0))

    assert of(1) == of(1)
    assert of(1).arrivals != of(2).arrivals


def test_what_others_do_does_not_change_a_workers_durations() -> None:
    pace = Compute(1.0, jitter=0.3, transient=Transient(0.2, 3.0))
    alone = run("asp", 1, 10, pace).compute_s[0]
    assert run("asp", 5, 10, pace, shared=False).compute_s[0] == alone


def test_ten_thousand_workers() -> None:
    """Cost only; the test has a deadline, not a speed."""
    result = run("asp", 10_000, 2, Compute(0.01, Stragglers(100, 4.0), jitter=0.1))
    assert result.steps == 20_000
    assert result.staleness[9999] > 0  # equal speeds: about N - 1 updates are missed


def test_uneven_shards_end_cleanly() -> None:
    """Scenarios 2 and 3: 3 and 2 batches, and none; the last batch of a shard is smaller."""
    for name in protocols.names():
        if protocols.create(name).layout == "pipeline":
            continue
        budget = Budget(3, 3, shared=False)
        work = _Shards(budget, {0: [4, 4, 1], 1: [4, 2], 2: []})
        result = Simulation(protocols.create(name), work, 3).run()
        assert result.samples == 15, name
        assert result.num_folded + sum(result.dropped.values()) > 0


class _Shards(CostOnly):
    def __init__(self, budget: Budget, sizes: dict[int, list[int]]) -> None:
        super().__init__(budget, 1000, 4)
        self.sizes = {rank: iter(each) for rank, each in sizes.items()}

    def next_batch(self, rank: int) -> int | None:
        return next(self.sizes[rank], None)


def test_a_death_under_asp_stops_nobody_and_under_bsp_costs_its_detection() -> None:
    """Scenario 14, in virtual time."""
    death = [Fault("death", 0, 10.5)]
    asp = run("asp", 2, 20, faults=death)
    assert asp.steps == 40 - 1  # its last step was begun, and lost
    assert asp.virtual_s == pytest.approx(29.0)
    bsp = run("bsp", 2, 20, faults=death, detect_s=3.0, shared=False)
    # Round 11 waits from 11 s until 13.5 s; then one worker goes on alone.
    assert bsp.virtual_s == pytest.approx(13.5 + 9.0)
    assert bsp.version == 20


def test_a_push_that_dies_with_its_sender_is_lost_and_counted() -> None:
    link = LinkSpec(8.0, 0.0)  # 1 MB takes 1 s
    result = run("asp", 2, 3, num_bytes=1_000_000, link=link, faults=[Fault("death", 0, 1.5)])
    assert result.lost == 1
    assert result.num_folded == 5


@pytest.mark.parametrize("name", ["asp", "bsp", "all_reduce", "ssp"])
def test_a_newcomer_takes_part(name: str) -> None:
    result = run(name, 2, 20, faults=[Fault("join", 2, 5.5)], num_bytes=100)
    assert result.compute_s[2] > 5.0
    assert result.virtual_s < 20.0
    assert result.bytes_received[2] > 100


class Record(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, float, dict[str, Any]]] = []

    def changed(self, what: str, now_s: float, **facts: Any) -> None:
        self.seen.append((what, now_s, facts))


class SwitchAt(Central):
    """Leaves all-reduce after some collectives, and folds one by one from then on."""

    def on(self, event: Event, /) -> Sequence[Action]:
        if isinstance(event, Reduced):
            self.version += 1
            if event.clock != 3:
                return []
            grants = [Grant(rank, event.clock) for rank in sorted(self.members)]
            return [SwitchTopology("server"), *grants]
        actions = super().on(event)
        # under all-reduce the end of a collective is the grant
        return [] if isinstance(event, Joined) and self.version < 3 else actions

    def fold(self, event: Pushed) -> list[Action]:
        return self.apply([event.push], [1.0])


@dataclass(frozen=True)
class Switching(Protocol):
    name: ClassVar[str] = "switching"
    layout: ClassVar[Layout] = "replicas"
    card: ClassVar[Card] = NO_CARD

    def local(self, rank: int) -> Machine:
        return Replica()

    def central(self) -> Machine:
        return SwitchAt()


def test_a_switch_from_all_reduce_to_a_server_loses_no_step() -> None:
    watch = Record()
    work = CostOnly(Budget(10, 4), 1000)
    pace = Compute(1.0, Stragglers(1, 4.0))
    result = Simulation(Switching(), work, 4, pace, observer=watch).run()
    assert ("switched", 12.0, {"step": None, "to": "server"}) in watch.seen
    assert result.num_folded == result.steps == 40
    assert result.version == 3 + 28
    assert result.virtual_s < 12.0 + 28 / 3.25 + 4.0


class WhenItMoved(Replica):
    """Pushes only when its loss is high, pulls only every third step, and waits for nobody."""

    def on(self, event: Event, /) -> Sequence[Action]:
        if isinstance(event, StepDone):
            self.clock = event.clock
            if event.clock % 3 == 0:
                return (SendPull(),)
            push = (SendPush(),) if event.evidence["loss"] > 0.5 else ()
            return (*push, Start(self.clock))
        if isinstance(event, Granted):
            # An acknowledged push brings a grant in the middle of a step: nothing to start.
            return () if self.clock % 3 else (Start(self.clock),)
        return super().on(event)


class Losses(CostOnly):
    def step(self, rank: int) -> Mapping[str, float]:
        return {"loss": 1.0 if self.budget.taken % 2 else 0.0}


@dataclass(frozen=True)
class DataDriven(Protocol):
    name: ClassVar[str] = "data_driven"
    layout: ClassVar[Layout] = "server"
    card: ClassVar[Card] = NO_CARD

    def local(self, rank: int) -> Machine:
        return WhenItMoved()

    def central(self) -> Machine | None:
        return protocols.create("asp").central()


def test_pushes_and_pulls_may_go_their_own_ways() -> None:
    """Room for data-driven pushes and pulls: one without the other, steps while a push travels."""
    work = Losses(Budget(30, 1), 1000)
    result = Simulation(DataDriven(), work, 1, Compute(1.0), LinkSpec(None, 100.0)).run()
    assert result.steps == 30
    assert 0 < result.num_folded < 30
    # Only the pulls cost time: 2 delays each, 10 of them; pushes overlap with the next step.
    assert result.wait_s[0] == pytest.approx(10 * 0.2)


class Deaf(Central):
    def on(self, event: Event, /) -> Sequence[Action]:
        return super().on(event) if isinstance(event, Joined) else []


@dataclass(frozen=True)
class NeverAnswers(Protocol):
    name: ClassVar[str] = "never_answers"
    layout: ClassVar[Layout] = "server"
    card: ClassVar[Card] = NO_CARD

    def local(self, rank: int) -> Machine:
        return Replica()

    def central(self) -> Machine:
        return Deaf()


def test_a_deadlock_is_an_error_that_names_the_workers() -> None:
    with pytest.raises(WorkerError, match=r"deadlock.*2 workers.*rank 0 at clock 1"):
        Simulation(NeverAnswers(), CostOnly(Budget(5, 2), 0), 2).run()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: run("asp", 0), "workers must be >= 1, got 0"),
        (lambda: run("vanilla"), "'vanilla' is for pipelines"),
        (lambda: run("asp", steps=-1), "steps must be >= 0, got -1"),
        (lambda: run("asp", 2, compute=Compute(1.0, Stragglers(3, 2.0))), "3 stragglers but 2"),
        (lambda: run("asp", faults=[Fault("death", 9, 1.0)]), "rank 9 cannot die"),
        (lambda: run("asp", faults=[Fault("join", 1, 1.0)]), "use a rank >= 4"),
        (lambda: run("asp", faults=[Fault("death", 1, 1.0)] * 2), "can die once"),
        (lambda: run("asp", num_servers=0), "servers must be >= 1, got 0"),
        (lambda: run("asp", server_s=-1.0), "must be >= 0 seconds, got -1.0"),
        (lambda: Compute(-1.0), "step time must be >= 0 seconds, got -1.0"),
        (lambda: Compute(jitter=float("nan")), "jitter must be >= 0, got nan"),
        (lambda: LinkSpec(-5.0), "link rate must be > 0 Mbit/s, got -5.0"),
        (lambda: LinkSpec.parse("-100mbit"), "must be > 0 Mbit/s, got -100.0"),
        (lambda: LinkSpec.parse("fast"), "must look like RATE,DELAY"),
        (lambda: Stragglers.parse("2x0.5"), "COUNTxFACTOR with a factor >= 1"),
        (lambda: Transient.parse("2x5"), r"a probability in \[0, 1\]"),
        (lambda: Fault.parse("death", "1 at 2"), "must look like RANK@SECONDS"),
        (lambda: CostOnly(Budget(1, 1), -1), "parameters need >= 0 bytes"),
    ],
)
def test_bad_input_names_the_rule(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()


def test_links_are_read_in_all_units() -> None:
    assert LinkSpec.parse("1gbit,250us") == LinkSpec(1000.0, 0.25)
    assert LinkSpec.parse("0.1s") == LinkSpec(None, 100.0)
    assert LinkSpec.parse("none") == LinkSpec()
