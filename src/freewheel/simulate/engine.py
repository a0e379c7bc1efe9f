"""The event engine: drives a protocol's machines, in virtual time, over a workload."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from freewheel.errors import ConfigError, WorkerError
from freewheel.monitors import Verdict
from freewheel.protocols.base import Action, Deadline, Protocol, SetDeadline, StepDone
from freewheel.protocols.replicas import (
    Ended,
    Granted,
    Joined,
    Kind,
    Layout,
    Reported,
    SendPull,
    SendPush,
    SendReport,
    Start,
)
from freewheel.protocols.strategy_switch import StrategySwitch
from freewheel.protocols.switching import logged
from freewheel.simulate.collective import Collective
from freewheel.simulate.compute import Compute
from freewheel.simulate.faults import Fault, check_faults
from freewheel.simulate.link import LinkSpec, Network
from freewheel.simulate.queue import EventQueue
from freewheel.simulate.result import Observer, Result
from freewheel.simulate.server import SERVER, Server
from freewheel.simulate.worker import Reply, Request, Worker
from freewheel.simulate.workload import Workload


class Simulation:
    """One run in virtual time; deterministic: the same arguments give the same result.

    Every worker has the initial parameters at time 0. The server handles requests one after the
    other.

    Args:
        protocol: a protocol for replicas or a server.
        workload: what is computed.
        num_workers: initial workers, ranks 0 to ``num_workers - 1``.
        compute: how long steps take.
        link: the network between workers and server.
        faults: deaths and joins.
        num_servers: servers that each hold an equal part; folds are sequenced over all of them.
        server_s: seconds that the servers need for one push.
        detect_s: seconds until a death is noticed.
        observer: is told what happens.
        steps_per_epoch: what an epoch is for criteria that look at one; None: they see no epoch.
        validate: measures the loss on the validation part, for criteria that look at it.

    Raises:
        ConfigError: no workers, an impossible fault, or a protocol for pipelines.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.simulate import Budget, Compute, CostOnly, Simulation, Stragglers
        >>> def time_of(name):
        ...     work = CostOnly(Budget(steps=100, num_workers=4), num_bytes=0)
        ...     pace = Compute(step_s=1.0, stragglers=Stragglers(1, 4.0))
        ...     return Simulation(protocols.create(name), work, 4, pace).run().virtual_s
        >>> time_of("bsp"), time_of("asp")
        (400.0, 124.0)
    """

    def __init__(
        self,
        protocol: Protocol,
        workload: Workload,
        num_workers: int,
        compute: Compute | None = None,
        link: LinkSpec | None = None,
        faults: Sequence[Fault] = (),
        num_servers: int = 1,
        server_s: float = 0.0,
        detect_s: float = 1.0,
        observer: Observer | None = None,
        steps_per_epoch: int | None = None,
        validate: Callable[[], float] | None = None,
    ) -> None:
        if num_workers < 1:
            raise ConfigError(f"workers must be >= 1, got {num_workers}")
        if protocol.layout == "pipeline":
            raise ConfigError(
                f"protocol {protocol.name!r} is for pipelines; the simulator has workers: "
                "use one for replicas or a server, e.g. asp"
            )
        if not (server_s >= 0 and detect_s >= 0):
            raise ConfigError(
                f"server_s and detect_s must be >= 0 seconds, got {server_s} and {detect_s}"
            )
        if num_servers < 1:
            raise ConfigError(f"servers must be >= 1, got {num_servers}")
        check_faults(faults, num_workers)
        self.protocol, self.workload = protocol, workload
        self.num_workers = num_workers
        self.topology: Layout = protocol.layout
        self.queue = EventQueue()
        self.network = Network(self.queue, link or LinkSpec(), {SERVER: num_servers})
        self.observer = observer or Observer()
        self.result = Result()
        self.workers: dict[int, Worker] = {}
        self.detect_s = detect_s
        self._durations = (compute or Compute()).of(num_workers)
        self._faults = faults
        self._deadlines: dict[tuple[int, str], int] = {}
        self.server = Server(self, protocol.central(), server_s)
        needs: frozenset[str] = frozenset(getattr(protocol, "needs", ()))
        self.collective = Collective(self, needs, steps_per_epoch, validate)
        self._wants_progress = "progress" in needs
        self._verdict: Verdict | None = None
        self._is_other = False

    def run(self) -> Result:
        """Run to the end; return the totals.

        Raises:
            WorkerError: nothing can happen any more, but workers wait.
        """
        for fault in self._faults:
            call = self._die if fault.what == "death" else self._join
            self.queue.at(fault.at_s, call, fault.rank)
        first = [self._add(rank) for rank in range(self.num_workers)]
        self.server.welcome(first)
        self.queue.run()
        self._check_all_ended()
        for name in ("bytes_sent", "bytes_received", "messages_sent"):
            setattr(self.result, name, dict(sorted(getattr(self.network, name).items())))
        self.result.compute_s = {rank: w.compute_s for rank, w in self.workers.items()}
        self.result.wait_s = {rank: w.wait_s for rank, w in self.workers.items()}
        return self.result

    def receive(self, worker: Worker, reply: Reply) -> None:
        """Hand a reply to a worker: at once, or at the end of the step that it is in."""
        if not worker.alive or worker.ended:
            return
        worker.waiting = False
        worker.reply = reply
        if not worker.computing:
            worker.wait_s += self.queue.now_s - worker.asked_at_s
            self._adopt(worker)
        self._act(worker, worker.machine.on(Granted(reply.clock, reply.version)))

    def leave_with(self, worker: Worker, version: int, snapshot: Any) -> None:
        """Give a waiting worker parameters at once; its grant will follow, without them."""
        worker.reply = Reply(worker.clock, version, snapshot)
        self._adopt(worker)
        worker.wants_parameters = False

    def judged(self, verdict: Verdict | None) -> None:
        """Log what a criterion said, if that is news."""
        if verdict is None or verdict is self._verdict:
            return
        self._verdict = verdict
        step = getattr(self.server.machine, "step", None)
        for row in logged(verdict):
            self.observer.changed("verdict", self.queue.now_s, step=step, **row)

    def switch(self, to: Layout, go_on: Callable[[], None]) -> None:
        """Go over to another protocol: hand the state over, then let its machine act."""
        before, self.topology, self._is_other = self.topology, to, not self._is_other
        changes = self.protocol.changes() if isinstance(self.protocol, StrategySwitch) else None
        alive = [rank for rank, worker in self.workers.items() if worker.alive]
        extra = self.workload.switched(changes if self._is_other else None, max(1, len(alive)))
        step = getattr(self.server.machine, "step", None)
        self.observer.changed("switched", self.queue.now_s, step=step, to=to)
        size = self.workload.num_bytes + extra
        if before == to or to == "replicas" or not alive:
            go_on()
            return

        def begin() -> None:
            go_on()
            for worker in self.workers.values():
                # whoever may begin only later needs the parameters of then
                worker.wants_parameters |= worker.waiting

        # everybody has the same; the lowest rank hands it over
        self.network.send(min(alive), SERVER, size, begin)

    def depart(self, worker: Worker) -> None:
        """Take a worker out, wherever it takes part."""
        self.workload.leave(worker.rank)
        self.observer.changed("left", self.queue.now_s, rank=worker.rank)
        self.server.left(worker.rank)
        self.collective.left(worker.rank)

    def set_deadline(self, rank: int, action: SetDeadline) -> None:
        """Wake the machine of ``rank`` (the server's is -1) later."""
        key = (rank, action.name)
        self._deadlines[key] = self._deadlines.get(key, 0) + 1
        self.queue.after(action.after_s, self._wake, rank, action.name, self._deadlines[key])

    def _wake(self, rank: int, name: str, number: int) -> None:
        if self._deadlines[rank, name] != number:
            return  # replaced by a later one of that name
        if rank == SERVER:
            self.server.deadline(name)
        elif self.workers[rank].alive and not self.workers[rank].ended:
            self._act(self.workers[rank], self.workers[rank].machine.on(Deadline(name)))

    def _add(self, rank: int) -> Worker:
        worker = Worker(rank, self.protocol.local(rank))
        worker.asked_at_s = worker.last_push_s = self.queue.now_s
        self.workers[rank] = worker
        self.collective.members.add(rank)
        return worker

    def _join(self, rank: int) -> None:
        worker = self._add(rank)
        self.observer.changed("joined", self.queue.now_s, rank=rank)
        if self.topology == "replicas":
            self.collective.welcome(worker)
            return
        self.collective.members.discard(rank)
        self.network.send(rank, SERVER, 0, self._arrive, worker)

    def _arrive(self, worker: Worker) -> None:
        if self.topology == "replicas":  # it was switched while the newcomer's word was on its way
            self.collective.welcome(worker)
            return
        self.collective.members.add(worker.rank)
        self.server.hear(Joined(worker.rank))

    def _die(self, rank: int) -> None:
        worker = self.workers[rank]
        if worker.ended:
            return
        worker.alive = False
        worker.died_at_s = self.queue.now_s
        self.observer.changed("died", self.queue.now_s, rank=rank)
        self.queue.after(self.detect_s, self.depart, worker)

    def _act(self, worker: Worker, actions: Sequence[Action]) -> None:
        kind: Kind | None = None
        mix: float | None = None
        for action in actions:
            if isinstance(action, SendPush):
                kind = action.kind
            elif isinstance(action, SendPull):
                mix = action.mix
            elif isinstance(action, Start):
                self._ask(worker, kind, mix)
                kind = mix = None
                self._start(worker, action.clock)
            elif isinstance(action, SendReport):
                self._report(worker)
            elif isinstance(action, SetDeadline):
                self.set_deadline(worker.rank, action)
            else:
                raise RuntimeError(f"{self.protocol.name}: a worker cannot do {action}")
        self._ask(worker, kind, mix)

    def _start(self, worker: Worker, clock: int) -> None:
        if worker.computing or clock != worker.clock:
            raise RuntimeError(
                f"{self.protocol.name}: {Start(clock)} while worker {worker.rank} is "
                f"{'computing' if worker.computing else 'idle'} at clock {worker.clock}"
            )
        num_samples = self.workload.next_batch(worker.rank)
        if num_samples is None:
            self._end(worker)
            return
        self._adopt(worker)
        worker.begin()
        self.observer.started(worker)
        seconds = self._durations.next_s(worker.rank) * self.workload.share(num_samples)
        self.queue.after(seconds, self._finish, worker, num_samples, seconds)

    def _finish(self, worker: Worker, num_samples: int, seconds: float) -> None:
        if not worker.alive:
            return
        evidence = self.workload.step(worker.rank)
        worker.finish(num_samples, evidence, seconds)
        self.result.steps += 1
        self.result.samples += num_samples
        self.observer.stepped(worker, num_samples, evidence, seconds)
        seen = {**evidence, **self.workload.measure(worker.rank)}
        self._act(worker, worker.machine.on(StepDone(worker.clock, seen, seconds)))

    def _end(self, worker: Worker) -> None:
        worker.ended = True
        self._act(worker, worker.machine.on(Ended(worker.clock)))
        # Its goodbye follows its last push on the same interface, and so arrives after it.
        self.network.send(worker.rank, SERVER, 0, self.server.serve, self.depart, worker)

    def _ask(self, worker: Worker, kind: Kind | None, mix: float | None) -> None:
        if kind is None and mix is None:
            return
        payload = None if kind is None else self.workload.take_push(worker.rank, kind)
        push, evidence = (None, {}) if kind is None else worker.take_push(kind)
        if kind is not None:
            self.observer.pushed(worker, worker.clock)
            if self._wants_progress:
                evidence = {**evidence, "progress": self.workload.budget.progress}
        if not worker.computing and not worker.ended:
            worker.asked_at_s = self.queue.now_s
        worker.waiting = True
        worker.wants_parameters = mix is not None
        worker.pull_mix = 1.0 if mix is None else mix
        request = Request(push, payload, evidence, mix is not None, worker.clock)
        if self.topology == "replicas":
            self.collective.contribute(worker, request)
        else:
            size = 0 if push is None else self.workload.push_bytes(payload, push.kind)
            request.sent_until_s = self.network.send(
                worker.rank, SERVER, size, self.server.serve, self.server.request, worker, request
            )

    def _report(self, worker: Worker) -> None:
        evidence, sketch = self.workload.report(worker.rank)
        report = Reported(worker.rank, worker.clock, worker.samples, evidence, sketch)
        worker.asked_at_s = self.queue.now_s
        worker.waiting, worker.wants_parameters = True, False
        request = Request(None, None, evidence, False, worker.clock, report=report)
        size = 4 * (2 + len(sketch))
        request.sent_until_s = self.network.send(
            worker.rank, SERVER, size, self.server.serve, self.server.request, worker, request
        )

    def _adopt(self, worker: Worker) -> None:
        reply, worker.reply = worker.reply, None
        if reply is None:
            return
        worker.version = reply.version
        if reply.snapshot is not None:
            self.workload.adopt(worker.rank, reply.snapshot, worker.pull_mix)

    def _check_all_ended(self) -> None:
        stuck = [w for w in self.workers.values() if w.alive and not w.ended]
        if stuck:
            who = ", ".join(f"{w.rank} at clock {w.clock}" for w in stuck[:8])
            raise WorkerError(
                f"protocol {self.protocol.name!r} is in a deadlock at {self.queue.now_s:g} virtual "
                f"s: {len(stuck)} workers wait for a grant that nobody can cause any more "
                f"(rank {who}); a central machine must answer every request"
            )
