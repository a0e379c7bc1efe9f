"""All-reduce in virtual time: a ring over all workers, begun when the last of them is ready."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from freewheel.aggregation import sample_weights
from freewheel.monitors.expected_gain import speedup
from freewheel.monitors.gradients import gradient_evidence
from freewheel.monitors.stragglers import slowness
from freewheel.protocols.replicas import Drop, Fold, Push, Reduced
from freewheel.simulate.worker import Reply, Request, Worker

if TYPE_CHECKING:
    from freewheel.simulate.engine import Simulation


class Collective:
    """Gathers one contribution of every member, and gives all of them the mean.

    Args:
        run: the simulation that it is part of.
        needs: names of the evidence that somebody looks at; what is dear is made only then.
        steps_per_epoch: None: there are no epochs.
        validate: measures the loss on the validation part, once an epoch.
    """

    def __init__(
        self,
        run: Simulation,
        needs: Collection[str] = (),
        steps_per_epoch: int | None = None,
        validate: Callable[[], float] | None = None,
    ) -> None:
        self.run = run
        self._needs, self._steps_per_epoch, self._validate = needs, steps_per_epoch, validate
        self._steps = 0
        self.members: set[int] = set()
        self._waiting: dict[int, tuple[Worker, Request]] = {}
        self._newcomers: list[Worker] = []
        self._running = False

    def welcome(self, worker: Worker) -> None:
        """Let a newcomer in when the next collective ends, with its parameters."""
        self.members.discard(worker.rank)
        self._newcomers.append(worker)
        if not self.members:
            self._admit()

    def contribute(self, worker: Worker, request: Request) -> None:
        """Take part in the collective that is open."""
        self._waiting[worker.rank] = (worker, request)
        self._begin_if_ready()

    def left(self, rank: int) -> None:
        """Wait for it no longer; what it contributed stays."""
        self.members.discard(rank)
        if self.run.topology != "replicas":
            return
        self._begin_if_ready()
        if not self._running and not self.members:
            self._admit()

    def _begin_if_ready(self) -> None:
        if self._running or not self._waiting or not self.members <= self._waiting.keys():
            return
        self._running = True
        gathered, self._waiting = dict(sorted(self._waiting.items())), {}
        lasts = self.run.network.ring(list(gathered), self.run.workload.num_bytes)
        self.run.queue.after(lasts, self._end, gathered, lasts)

    def _end(self, gathered: dict[int, tuple[Worker, Request]], ring_s: float) -> None:
        server, now_s = self.run.server, self.run.queue.now_s
        fit, sums = [], dict[str, float]()
        for _, request in gathered.values():
            push = request.push
            if push is None:
                continue
            if not push.num_samples:
                server.drop(Drop(push, "no samples"))
                continue
            if request.evidence.get("non_finite", 0.0) > 0:
                server.drop(Drop(push, "non-finite values"))
                continue
            fit.append((push, request.payload))
            for name, value in request.evidence.items():
                sums[name] = sums.get(name, 0.0) + value * push.num_samples
        if fit:
            pushes = tuple(push for push, _ in fit)
            weights = sample_weights([push.num_samples for push in pushes])
            server.fold(Fold(pushes, weights), [payload for _, payload in fit])
        total = sum(push.num_samples for push, _ in fit)
        clock = max(worker.clock for worker, _ in gathered.values())
        evidence = {name: value / max(1, total) for name, value in sums.items()}
        evidence |= self._beside(gathered, fit, total, ring_s)
        self.run.observer.changed("reduced", now_s, clock=clock, version=server.version)
        for worker, request in gathered.values():
            worker.wants_parameters = request.pull
        server.reduced(Reduced(clock, evidence))
        self._running = False
        self._admit()
        if self.run.topology != "replicas":
            self._hand_over(gathered)
            return
        for worker, request in gathered.values():
            snapshot = server.snapshot() if request.pull else None
            self.run.receive(worker, Reply(worker.clock, server.version, snapshot))

    def _hand_over(self, gathered: dict[int, tuple[Worker, Request]]) -> None:
        """Leave the mean with all who took part; when they may go on is the server's to say."""
        for worker, request in gathered.values():
            if request.pull and worker.alive and worker.waiting:
                self.run.leave_with(worker, self.run.server.version, self.run.server.snapshot())

    def _beside(
        self,
        gathered: dict[int, tuple[Worker, Request]],
        fit: list[tuple[Push, Any]],
        total: int,
        ring_s: float,
    ) -> dict[str, float]:
        """Return what criteria may look at beside the means over samples."""
        self._steps += 1
        evidence = {"num_samples": float(total), "num_workers": float(len(gathered))}
        took = [request.evidence.get("duration_s", 0.0) for _, request in gathered.values()]
        lasted_s = max(took, default=0.0) + ring_s
        if all(each > 0 for each in took):
            evidence["speedup"] = speedup([lasted_s - each for each in took], lasted_s)
            evidence["slowness"] = slowness(took)
        if "progress" in self._needs:
            evidence["progress"] = self.run.workload.budget.progress
        if self._steps_per_epoch is not None:
            evidence["epoch"] = float((self._steps - 1) // self._steps_per_epoch)
            due = self._steps % self._steps_per_epoch == 0
            if due and self._validate is not None and "validation_loss" in self._needs:
                evidence["validation_loss"] = self._validate()
        if "grad_norm_sq" in self._needs and fit:
            norms_sq, of_sum = self.run.workload.norms_sq([payload for _, payload in fit])
            if norms_sq:
                evidence |= gradient_evidence(norms_sq, of_sum)
        return evidence

    def _admit(self) -> None:
        newcomers, self._newcomers = self._newcomers, []
        for worker in newcomers:
            if not worker.alive:
                continue
            self.members.add(worker.rank)
            server = self.run.server
            server.joined(worker.rank)
            if self.run.topology == "replicas":
                self.run.receive(worker, Reply(0, server.version, server.snapshot()))
