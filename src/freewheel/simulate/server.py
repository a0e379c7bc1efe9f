"""The server in virtual time: hears requests one after the other, and does as its machine says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from freewheel.protocols.base import Action, CentralEvent, Deadline, Machine, SetDeadline
from freewheel.protocols.replicas import (
    Drop,
    Fold,
    Grant,
    Joined,
    Left,
    Pulled,
    Push,
    Pushed,
    Reduced,
    SwitchTopology,
)
from freewheel.simulate.worker import Reply, Request, Worker

if TYPE_CHECKING:
    from freewheel.simulate.engine import Simulation

#: The server's number where workers have their rank.
SERVER = -1


class Server:
    """Carries out what the central machine asks for.

    Args:
        run: the simulation that it is part of.
        machine: the protocol's central machine; None where there is none.
        server_s: seconds of work for one request.
    """

    def __init__(self, run: Simulation, machine: Machine | None, server_s: float) -> None:
        self.run, self.machine = run, machine
        self.version = 0
        self._server_s = server_s
        self._busy_until_s = 0.0
        self._payloads: dict[Push, Any] = {}
        self._snapshot: tuple[int, Any] = (-1, None)

    def welcome(self, workers: Sequence[Worker]) -> None:
        """Let the initial workers begin; the parameters they have are the initial ones."""
        if self.run.topology == "replicas":
            # the end of a collective is the grant, and that of none is the first one
            for worker in workers:
                self.joined(worker.rank)
            for worker in workers:
                self.run.receive(worker, Reply(0, 0))
            return
        # All are members before anybody computes: a round waits for all of them.
        answers = [self._tell(Joined(worker.rank)) for worker in workers]
        for worker in workers:
            worker.wants_parameters = False
        for actions in answers:
            self._act(actions)
        for worker in workers:
            # Whoever may begin only later needs the parameters of then.
            worker.wants_parameters = worker.waiting

    def serve(self, call: Callable[..., None], *args: Any) -> None:
        """Call ``call(*args)`` when the server has time for it."""
        if not self._server_s:
            call(*args)
            return
        self._busy_until_s = max(self.run.queue.now_s, self._busy_until_s) + self._server_s
        self.run.queue.at(self._busy_until_s, call, *args)

    def request(self, worker: Worker, request: Request) -> None:
        """Handle a push, a pull, or both, or a report."""
        if worker.died_at_s < request.sent_until_s:
            self.run.result.lost += request.push is not None
            return
        now_s = self.run.queue.now_s
        if request.push is None:
            self.hear(request.report or Pulled(worker.rank, request.clock))
            return
        since_s, worker.last_push_s = now_s - worker.last_push_s, now_s
        self._payloads[request.push] = request.payload
        self.hear(Pushed(request.push, request.evidence, since_s))

    def hear(self, event: CentralEvent) -> None:
        """Tell the machine, and do as it says."""
        self._act(self._tell(event))

    def joined(self, rank: int) -> None:
        """Tell the machine of a newcomer in a collective."""
        if self.machine is not None:
            self.hear(Joined(rank))

    def left(self, rank: int) -> None:
        """Tell the machine that a worker is gone."""
        if self.machine is not None:
            self.hear(Left(rank))

    def reduced(self, event: Reduced) -> None:
        """Tell the machine that a collective ended."""
        if self.machine is not None:
            self.hear(event)

    def deadline(self, name: str) -> None:
        """Tell the machine that its deadline passed."""
        self.hear(Deadline(name))

    def snapshot(self) -> Any:
        """Return the parameters of this version; made once for all who pull it."""
        if self._snapshot[0] != self.version:
            self._snapshot = (self.version, self.run.workload.snapshot())
        return self._snapshot[1]

    def _tell(self, event: CentralEvent) -> Sequence[Action]:
        self.run.result.arrivals.append(event)
        actions = () if self.machine is None else self.machine.on(event)
        self.run.judged(getattr(self.machine, "verdict", None))
        return actions

    def _act(self, actions: Sequence[Action]) -> None:
        for place, action in enumerate(actions):
            if isinstance(action, Grant):
                self._reply(self.run.workers[action.rank], action.clock)
            elif isinstance(action, Fold):
                self.fold(action, [self._payloads.pop(push) for push in action.pushes])
            elif isinstance(action, Drop):
                self.drop(action)
            elif isinstance(action, SwitchTopology):
                self.run.switch(action.to, partial(self._act, actions[place + 1 :]))
                return
            elif isinstance(action, SetDeadline):
                self.run.set_deadline(SERVER, action)
            else:
                raise RuntimeError(f"{self.run.protocol.name}: a server cannot do {action}")

    def fold(self, fold: Fold, payloads: Sequence[Any]) -> None:
        """Make the next version."""
        result = self.run.result
        result.num_folded += len(fold.pushes)
        for push in fold.pushes:
            result.staleness[self.version - push.based_on] += 1
        self.run.workload.fold(payloads, fold.weights, fold.pushes[0].kind)
        self.version += 1
        result.version, result.virtual_s = self.version, self.run.queue.now_s
        self.run.observer.folded(fold, self.version, self.run.queue.now_s)

    def drop(self, drop: Drop) -> None:
        """Refuse a push."""
        self.run.workload.drop(self._payloads.pop(drop.push, None))
        self.run.result.dropped[drop.reason] += 1
        self.run.result.virtual_s = self.run.queue.now_s
        self.run.observer.dropped(drop, self.run.queue.now_s)

    def _reply(self, worker: Worker, clock: int) -> None:
        if not worker.waiting:
            raise RuntimeError(
                f"{self.run.protocol.name}: a grant for rank {worker.rank}, which has not asked"
            )
        pull = worker.wants_parameters
        told, size = self.run.workload.answer(worker.rank, self.snapshot() if pull else None, pull)
        reply = Reply(clock, self.version, told)
        worker.waiting = False
        if not pull and self.version == 0 and worker.clock == 0:
            # The first grant: initial parameters are there already, no message is needed.
            self.run.receive(worker, reply)
            return
        self.run.network.send(SERVER, worker.rank, size, self.run.receive, worker, reply)
