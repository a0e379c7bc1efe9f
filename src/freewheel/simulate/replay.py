"""Repeat the folds of a recorded run, real or simulated, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from freewheel.errors import ConfigError, DataError
from freewheel.protocols.base import Action, CentralEvent, Protocol, StepDone
from freewheel.protocols.replicas import (
    Drop,
    Ended,
    Fold,
    Grant,
    Granted,
    Joined,
    Left,
    Pulled,
    Push,
    Pushed,
    Reported,
    SendPull,
    SendPush,
    SendReport,
    Start,
)
from freewheel.simulate.worker import Worker
from freewheel.simulate.workload import Workload


class Replay:
    """Computes what a record's workers computed, and folds in the record's order.

    Time plays no part: a worker's gradient depends on the parameters that its grant brought, which
    depend on the order of arrivals alone.

    Args:
        protocol: the one that was recorded, for a server.
        workload: as at the start of the recorded run, its budget at least as large.

    Raises:
        ConfigError: the protocol has no server.
    """

    def __init__(self, protocol: Protocol, workload: Workload) -> None:
        central = protocol.central()
        if protocol.layout != "server" or central is None:
            raise ConfigError(
                f"protocol {protocol.name!r} has no server whose arrivals could be replayed"
            )
        self.protocol, self.workload, self.central = protocol, workload, central
        self.version = 0
        self.workers: dict[int, Worker] = {}
        self._payloads: dict[Push, Any] = {}

    def run(self, arrivals: Iterable[CentralEvent]) -> Workload:
        """Replay a record.

        Args:
            arrivals: what the central machine was told, in order.

        Returns:
            The workload, trained.

        Raises:
            DataError: the record does not fit the protocol or the workload.
        """
        begun = False
        for event in arrivals:
            if isinstance(event, Joined):
                worker = Worker(event.rank, self.protocol.local(event.rank))
                # who is there from the start has the initial parameters already ...
                worker.wants_parameters = begun
                self.workers[event.rank] = worker
            elif not begun:
                begun = True
                for worker in self.workers.values():
                    # ... unless it may begin only later
                    worker.wants_parameters = not worker.computing
            if isinstance(event, Pushed):
                self._compute(event.push)
            elif isinstance(event, Pulled | Reported):
                self._advance(event.rank, event.clock)
            self._act(self.central.on(event))
            if isinstance(event, Left):
                self.workload.leave(event.rank)
        return self.workload

    def _advance(self, rank: int, clock: int) -> Worker:
        """Let a worker compute up to a clock, as far as it may."""
        worker = self.workers.get(rank)
        if worker is None:
            raise DataError(
                f"worker {rank} asks for something and has not joined; is the record cut?"
            )
        while worker.clock < clock and worker.computing:
            num_samples = self.workload.next_batch(worker.rank)
            if num_samples is None:
                break
            evidence = self.workload.step(worker.rank)
            worker.finish(num_samples, evidence, 0.0)
            seen = {**evidence, **self.workload.measure(rank)}
            self._local(worker, worker.machine.on(StepDone(worker.clock, seen, 0.0)))
        return worker

    def _compute(self, push: Push) -> None:
        worker = self._advance(push.worker, push.clock)
        if push not in self._payloads:
            self._local(worker, worker.machine.on(Ended(worker.clock)))
        if push not in self._payloads:
            raise DataError(
                f"the record has {push}, but replayed worker {worker.rank} is at clock "
                f"{worker.clock} and has not pushed that; data, seed and protocol must be those of "
                "the recorded run"
            )

    def _local(self, worker: Worker, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Start):
                worker.begin()
            elif isinstance(action, SendPush):
                payload = self.workload.take_push(worker.rank, action.kind)
                push, _ = worker.take_push(action.kind)
                self._payloads[push] = payload
                worker.wants_parameters = False
            elif isinstance(action, SendPull):
                worker.pull_mix = action.mix
                worker.wants_parameters = True
            elif isinstance(action, SendReport):
                worker.wants_parameters = False

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Grant) and action.rank in self.workers:
                self._grant(self.workers[action.rank], action.clock)
            elif isinstance(action, Fold):
                payloads = [self._payloads.pop(push) for push in action.pushes]
                self.workload.fold(payloads, action.weights, action.pushes[0].kind)
                self.version += 1
            elif isinstance(action, Drop):
                self.workload.drop(self._payloads.pop(action.push, None))

    def _grant(self, worker: Worker, clock: int) -> None:
        worker.version = self.version
        pull = worker.wants_parameters
        snapshot = self.workload.snapshot() if pull else None
        told, _ = self.workload.answer(worker.rank, snapshot, pull)
        if told is not None:
            self.workload.adopt(worker.rank, told, worker.pull_mix)
        self._local(worker, worker.machine.on(Granted(clock, self.version)))


def replay(arrivals: Iterable[CentralEvent], protocol: Protocol, workload: Workload) -> Workload:
    """Replay a record; see ``Replay``.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.simulate import Budget, CostOnly, Simulation
        >>> from freewheel.simulate.replay import replay
        >>> run = Simulation(protocols.create("asp"), CostOnly(Budget(3, 2), 0), 2)
        >>> arrivals = run.run().arrivals
        >>> replay(arrivals, protocols.create("asp"), CostOnly(Budget(3, 2), 0)).budget.taken
        6
    """
    return Replay(protocol, workload).run(arrivals)
