"""What every protocol must keep, ours and those of other packages, over thousands of schedules.

A schedule is: how many workers, how fast each is (one may be 4x slower), how many batches each has
(some none, some without samples), a link, a server's pace, perhaps a death, perhaps a newcomer.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import pytest

from freewheel.errors import ConfigError
from freewheel.protocols import Card, Machine, Protocol, protocols
from freewheel.protocols.base import Action, Deadline, Event, StepDone
from freewheel.protocols.planning import Plans
from freewheel.protocols.replicas import Drop, Evidence, Fold
from freewheel.protocols.stages import Plan, Planned, Propose, Proposed, Rollback, Sync
from freewheel.protocols.watch import Predicted, Variance
from freewheel.simulate import Compute, CostOnly, Fault, LinkSpec, Observer, Simulation, Stragglers
from freewheel.simulate.worker import Worker
from freewheel.simulate.workload import Budget

#: Of each protocol, beside its default settings.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "ssp": [{"staleness": 0}, {"staleness": 1, "rescale": "staleness_aware"}],
    "dssp": [{"lower": 0, "upper": 3}],
    "local_sgd": [{"k": 1}, {"k": 3}],
    "bounded_delay": [{"tau": 0}, {"tau": 2}],
    "backup_workers": [{"b": 0}, {"b": 7}],
    "fedbuff": [{"k": 1}, {"k": 3, "local_steps": 2, "max_staleness": 2}],
    "gba": [{"batches": 3, "tolerance": 0}],
    "k_async": [{"k": 1}, {"k": 3}],
    "easgd": [{"alpha": 0.5, "period": 1}],
    "asp": [{"rescale": "lr_over_n"}],
    "fda": [{"theta": 0.0, "every": 2}, {"theta": 0.3, "every": 2}, {"estimate": "sketch"}],
    "dead_reckoning": [
        {"tolerance": 0.0},
        {"tolerance": 0.5, "every": 3},
        {"tolerance": 0.5, "predictor": "velocity"},
    ],
    "strategy_switch": [
        {"criterion": {"name": "maximum", "clock": 0}},
        {"criterion": {"name": "maximum", "clock": 2}, "then": "bsp"},
        {"criterion": {"name": "maximum", "clock": 1}, "then": {"name": "ssp", "staleness": 1}},
        {"criterion": {"name": "maximum", "clock": 2}, "then": {"name": "bounded_delay", "tau": 1}},
        {"first": "gba", "then": "all_reduce", "criterion": {"name": "maximum", "clock": 2}},
        {"first": "bsp", "then": "asp", "criterion": {"name": "maximum", "clock": 2}},
        {"criterion": "straggler", "back": {"name": "no_straggler", "window": 1}},
        {
            "criterion": {"name": "maximum", "clock": 1},
            "then": "gba",
            "back": {"name": "maximum", "clock": 3},
        },
    ],
}
#: The setting that bounds how far one may be ahead of the slowest.
BOUND = {"ssp": "staleness", "dssp": "upper"}

NUM_SCHEDULES = 10_000
NAMES = protocols.names()
OF_REPLICAS = [name for name in NAMES if protocols.create(name).layout != "pipeline"]
OF_STAGES = [name for name in NAMES if protocols.create(name).layout == "pipeline"]
CASES = [(name, settings) for name in OF_REPLICAS for settings in [{}, *SETTINGS.get(name, [])]]


class Batches(CostOnly):
    """Batches of given sizes for each worker, and a NaN now and then."""

    def __init__(
        self,
        sizes: Mapping[int, list[int]],
        bad: set[tuple[int, int]],
        watch: Predicted | Variance | None,
    ) -> None:
        super().__init__(Budget(0, 1), num_bytes=1000)
        self.left = {rank: list(own) for rank, own in sizes.items()}
        self.bad, self.steps = bad, Counter[int]()
        self.watch, self.chance = watch, Random(repr(self.left))

    def next_batch(self, rank: int) -> int | None:
        return self.left[rank].pop() if self.left[rank] else None

    def share(self, num_samples: int) -> float:
        return num_samples / 4

    def step(self, rank: int) -> Evidence:
        self.steps[rank] += 1
        return {"loss": 1.0, "non_finite": float((rank, self.steps[rank]) in self.bad)}

    def measure(self, rank: int) -> Evidence:
        if not isinstance(self.watch, Predicted):
            return {}
        return {"error_norm": self.chance.random(), "move_norm": 1.0, "state_norm": 1.0}

    def report(self, rank: int) -> tuple[Evidence, tuple[float, ...]]:
        assert isinstance(self.watch, Variance), "it reports what it does not ask to be measured"
        evidence = {"sq_norm": self.chance.choice((0.0, 0.2, 1.0, math.inf))}
        if self.chance.random() < 0.7:
            evidence["along"] = 0.1
        return evidence, (0.1,) * (self.watch.size - 2)


class Watch(Observer):
    """Keeps books of all pushes, and looks at every lead."""

    def __init__(self, bound: int | None) -> None:
        self.bound = bound
        self.sent: list[tuple[int, int]] = []
        self.folded_pushes: list[tuple[int, int]] = []
        self.dropped_pushes: dict[tuple[int, int], str] = {}
        self.newcomers: set[int] = set()
        self.gone: set[int] = set()
        self.died: set[int] = set()
        self.workers: dict[int, Worker] = {}
        self.trace: list[tuple[Any, ...]] = []

    def started(self, worker: Worker) -> None:
        self.trace.append(("start", worker.rank, worker.clock))
        self.workers[worker.rank] = worker
        if self.bound is not None and worker.rank not in self.newcomers:
            there = self.workers.keys() - self.gone - self.newcomers
            slowest = min(self.workers[rank].clock for rank in there)
            assert worker.clock + 1 - slowest <= self.bound + 1

    def pushed(self, worker: Worker, clock: int) -> None:
        self.sent.append((worker.rank, clock))

    def folded(self, fold: Fold, version: int, now_s: float) -> None:
        self.trace.append((fold, version, now_s))
        assert fold.pushes
        assert len(fold.pushes) == len(fold.weights)
        assert all(0 < weight <= 1 for weight in fold.weights)
        assert sum(fold.weights) <= 1 + 1e-9
        assert all(push.num_samples > 0 for push in fold.pushes)
        self.folded_pushes += [(push.worker, push.clock) for push in fold.pushes]

    def dropped(self, drop: Drop, now_s: float) -> None:
        self.trace.append((drop, now_s))
        assert drop.reason
        self.dropped_pushes[drop.push.worker, drop.push.clock] = drop.reason

    def changed(self, what: str, now_s: float, **facts: Any) -> None:
        {"joined": self.newcomers, "left": self.gone, "died": self.died}.get(what, set()).add(
            facts.get("rank", -1)
        )


class Reloaded:
    """A machine that is replaced, before some events, by a new one with its saved state."""

    def __init__(self, make: Any, chance: Random) -> None:
        self.make, self.chance = make, chance
        self.machine: Machine = make()

    def on(self, event: Event, /) -> Sequence[Action]:
        if self.chance.random() < 0.3:
            saved = json.dumps(self.machine.state_dict())
            self.machine = self.make()
            self.machine.load_state_dict(json.loads(saved))
            assert json.dumps(self.machine.state_dict()) == saved
        return self.machine.on(event)

    def state_dict(self) -> dict[str, Any]:
        return self.machine.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self.machine.load_state_dict(state)


class Reloading(Protocol):
    """A protocol whose machines are saved and loaded on the way."""

    def __init__(self, inner: Protocol, seed: int) -> None:
        self.inner, self.seed = inner, seed
        self.name, self.layout = inner.name, inner.layout  # type: ignore[misc]  # of its inner

    def local(self, rank: int) -> Machine:
        return Reloaded(lambda: self.inner.local(rank), Random(f"{self.seed}:{rank}"))

    def central(self) -> Machine | None:
        if self.inner.central() is None:
            return None
        return Reloaded(self.inner.central, Random(self.seed))


def run_schedule(protocol: Protocol, seed: int) -> tuple[Watch, Simulation]:
    """Run one random schedule."""
    chance = Random(seed)
    num_workers = chance.randint(1, 5)
    faults = []
    if chance.random() < 0.5:
        faults.append(Fault("death", chance.randrange(num_workers), chance.uniform(0.0, 8.0)))
    if chance.random() < 0.3:
        faults.append(Fault("join", num_workers, chance.uniform(0.0, 8.0)))
    sizes = {
        rank: [chance.choice((4, 4, 4, 1, 0)) for _ in range(chance.choice((0, 1, 3, 5, 7)))]
        for rank in range(num_workers + 1)
    }
    bad = {(0, 2)} if chance.random() < 0.1 else set[tuple[int, int]]()
    bound = BOUND.get(protocol.name)
    watch = Watch(None if bound is None else protocol.settings[bound])
    slow = Stragglers(chance.randint(0, 1), 4.0)
    simulation = Simulation(
        Reloading(protocol, seed) if seed % 4 == 0 else protocol,
        Batches(sizes, bad, protocol.watch),
        num_workers,
        Compute(1.0, slow, jitter=chance.choice((0.0, 0.3)), seed=seed),
        chance.choice((LinkSpec(), LinkSpec(0.1, 50.0))),
        faults,
        server_s=chance.choice((0.0, 0.2)),
        detect_s=chance.uniform(0.0, 2.0),
        observer=watch,
    )
    simulation.run()
    return watch, simulation


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value))
def test_schedules(name: str, settings: dict[str, Any]) -> None:
    """Scenarios 2, 3, 14, 15, 18: no deadlock, and every push is accounted for exactly once."""
    protocol = protocols.create(name, settings)
    # Every case has its share of the schedules, and no two cases have the same.
    for seed in range(CASES.index((name, settings)), NUM_SCHEDULES, len(CASES)):
        watch, simulation = run_schedule(protocol, seed)
        assert len(set(watch.folded_pushes)) == len(watch.folded_pushes), seed
        assert not set(watch.folded_pushes) & watch.dropped_pushes.keys(), seed
        accounted = len(watch.folded_pushes) + len(watch.dropped_pushes) + simulation.result.lost
        assert accounted == len(watch.sent), seed
        for rank, worker in simulation.workers.items():
            if rank in watch.died:
                continue
            mine = [clock for sender, clock in watch.sent if sender == rank]
            assert (max(mine) if mine else 0) == worker.clock, (seed, "a step was never pushed")
            for clock in mine:
                assert watch.dropped_pushes.get((rank, clock)) != "its worker has left", seed


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda value: str(value))
def test_saved_and_loaded_at_any_point_goes_on_the_same(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = protocols.create(name, settings)
    for seed in range(0, 80, 4):
        reloaded, _ = run_schedule(protocol, seed)
        with monkeypatch.context() as patch:
            patch.setattr(f"{__name__}.Reloading", lambda inner, seed: inner)
            plain, _ = run_schedule(protocol, seed)
        assert plain.trace == reloaded.trace, seed


@pytest.mark.parametrize("name", OF_STAGES)
def test_stage_plans_begin_later_than_any_micro_batch_in_flight(name: str) -> None:
    """Random pipelines with up to 3 clocks in flight: each stage can still take in each plan."""
    for seed in range(200):
        chance, protocol = Random(seed), protocols.create(name)
        num_stages, ahead = chance.randint(1, 4), chance.randint(1, 3)
        locals_, central = [protocol.local(rank) for rank in range(num_stages)], protocol.central()
        plans = [Plans() for _ in locals_]
        for clock in range(1, 40):
            newest = clock - 1 + ahead
            for rank, machine in enumerate(locals_):
                evidence = {"loss": chance.random()}
                for action in machine.on(StepDone(clock, evidence, chance.random())):
                    assert isinstance(action, Propose)
                    assert central is not None
                    for decision in central.on(Proposed(rank, action.what, newest)):
                        assert isinstance(decision, Plan | Rollback)
                        if isinstance(decision, Plan):
                            assert decision.from_clock > newest
                            for log, other in zip(plans, locals_, strict=True):
                                log.add(decision, newest)
                                other.on(Planned(decision))
                if chance.random() < 0.2:
                    saved = json.loads(json.dumps(machine.state_dict()))
                    locals_[rank] = protocol.local(rank)
                    locals_[rank].load_state_dict(saved)
            assert len({str(log.round_at(clock)) for log in plans}) == 1
        if central is None:
            assert plans[0].round_at(39) == Sync()


@pytest.mark.parametrize("name", NAMES)
def test_says_what_it_costs(name: str) -> None:
    protocol = protocols.create(name)
    assert protocol.name == name
    assert isinstance(protocol.card, Card)
    for field in ("waits_for", "messages", "bytes", "on_death", "exact", "reference", "paragraph"):
        assert getattr(protocol.card, field).strip(), field
    assert protocols.create(name, protocol.settings).settings == protocol.settings


@pytest.mark.parametrize("name", NAMES)
def test_ignores_a_deadline_that_it_did_not_set(name: str) -> None:
    protocol = protocols.create(name)
    for machine in (protocol.local(0), protocol.central()):
        if machine is not None:
            before = machine.state_dict()
            assert list(machine.on(Deadline("nobody's"))) == []
            assert machine.state_dict() == before


@pytest.mark.parametrize("name", NAMES)
def test_refuses_an_unknown_setting(name: str) -> None:
    with pytest.raises(ConfigError, match="has no setting 'sprocket'"):
        protocols.create(name, {"sprocket": 1})
