"""The one order in which a run's servers do things, and the record from which it can be repeated.

Server 0 hears of every push, pull, join and end, tells the protocol's central machine, and turns
its actions into orders that all servers carry out one after the other. That is what makes a pull
one version across servers, and a run repeatable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from freewheel.errors import NonFiniteError
from freewheel.protocols.base import Action, CentralEvent, Deadline, Machine, SetDeadline
from freewheel.protocols.replicas import (
    Drop,
    Evidence,
    Fold,
    Grant,
    Joined,
    Left,
    Pulled,
    Push,
    Pushed,
    Reported,
)

#: A worker of which so many pushes in a row were not finite will not recover.
MAX_NON_FINITE = 100


@dataclass(frozen=True, slots=True)
class Order:
    """One thing that every server does, in the order of their numbers.

    Args:
        what: ``fold`` pushes, ``drop`` one, ``forget`` what a worker sent after ``clock``,
            ``grant`` a worker's request, ``snapshot`` for a reader, ``return`` what is held to the
            workers (``pushes`` names them), or ``end``.
        pushes: ``(worker, clock)`` of each.
        weights: of each, for a fold.
        rank: the worker that is granted.
        clock: steps that begin at or before it may start; for a snapshot the step of the run.
        version: of the parameters once this is done.
        pull: whether the granted worker asked for parameters.
        staleness: of the granted worker's last push when it was folded; -1: not folded.
        cause: rank whose doing released the grant; the worker's own where it did not wait.
        asked: clock of the granted worker's request.
        alone: only server 0 was asked; the others need not know.
    """

    what: Literal["fold", "drop", "forget", "grant", "snapshot", "return", "end"]
    pushes: tuple[tuple[int, int], ...] = ()
    weights: tuple[float, ...] = ()
    rank: int = 0
    clock: int = 0
    version: int = 0
    pull: bool = False
    staleness: int = -1
    cause: int = 0
    asked: int = 0
    alone: bool = False


@dataclass(slots=True)
class WorkerNotes:
    """What is known of one worker.

    Args:
        clock: of its last request.
        version: of the parameters that it has.
        folded: its pushes that were folded.
        dropped: its pushes that were not, by reason.
        staleness: how many folded pushes had which.
        refused: pushes that were not fit to be told to the protocol at all.
    """

    clock: int = 0
    version: int = 0
    folded: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    staleness: Counter[int] = field(default_factory=Counter)
    refused: int = 0
    waiting: bool = True
    pull: bool = False
    alone: bool = False
    last: int = -1
    pushed_at_s: float = 0.0
    asked_at_s: float = 0.0
    non_finite: int = 0


class Sequencer:
    """Drives the central machine.

    Args:
        central: the protocol's.
        num_workers: initial workers, ranks from 0.
        record: is told every event, before the machine is.
    """

    def __init__(
        self, central: Machine, num_workers: int, record: Callable[[CentralEvent], None]
    ) -> None:
        self.central = central
        self.record = record
        self.version = 0
        self.workers = {rank: WorkerNotes() for rank in range(num_workers)}
        self.members: set[int] = set()
        self.wakes_at_s: dict[str, float] = {}
        self._now_s = 0.0

    def welcome(self, now_s: float, all_pull: bool = False) -> list[Order]:
        """Let the initial workers join; all are members before any of them computes.

        Args:
            now_s: the time.
            all_pull: all need the initial parameters; else each of them has them already.
        """
        self._now_s = now_s
        answers: list[tuple[int, Sequence[Action]]] = []
        for rank, notes in self.workers.items():
            notes.pushed_at_s = notes.asked_at_s = now_s
            self.members.add(rank)
            answers.append((rank, self._tell(Joined(rank))))
        for notes in self.workers.values():
            notes.pull = all_pull
        orders = [order for rank, actions in answers for order in self._orders(actions, rank)]
        # Who may begin only later needs the parameters of then; the others have them already.
        for notes in self.workers.values():
            notes.pull |= notes.waiting
        return orders

    def pushed(self, push: Push, evidence: Evidence, pull: bool, now_s: float) -> list[Order]:
        """Take in a push that all servers have, with a pull or not."""
        self._now_s = now_s
        notes = self.workers[push.worker]
        since_s, notes.pushed_at_s = now_s - notes.pushed_at_s, now_s
        notes.last = -1
        self._asked(notes, push.clock, pull)
        if evidence.get("non_finite", 0.0) > 0:
            notes.non_finite += 1
            if notes.non_finite >= MAX_NON_FINITE:
                raise NonFiniteError(
                    f"the last {MAX_NON_FINITE} pushes of worker {push.worker} were NaN or "
                    "infinite, and none was folded; lower optimizer.lr, set train.clip_norm, or "
                    "look for bad samples in its data"
                )
        elif push.num_samples:
            notes.non_finite = 0
        return self._orders(self._tell(Pushed(push, evidence, since_s)), push.worker)

    def pulled(self, rank: int, clock: int, now_s: float) -> list[Order]:
        """Take in a request for parameters without a push."""
        self._now_s = now_s
        self._asked(self.workers[rank], clock, True)
        return self._orders(self._tell(Pulled(rank, clock)), rank)

    def reported(self, event: Reported, now_s: float) -> list[Order]:
        """Take in what a worker measured, told to this server alone."""
        self._now_s = now_s
        notes = self.workers[event.rank]
        self._asked(notes, event.clock, pull=False, alone=True)
        return self._orders(self._tell(event), event.rank)

    def left(self, rank: int, now_s: float) -> list[Order]:
        """Take in that a worker ended or died; after the last one nothing is left to do."""
        self._now_s = now_s
        if rank not in self.members:
            return []
        self.members.discard(rank)
        self.workers[rank].waiting = False
        return self._orders(self._tell(Left(rank)), rank)

    def wake(self, now_s: float) -> list[Order]:
        """Tell the machine of its deadlines that have passed."""
        self._now_s = now_s
        orders = []
        for name in [name for name, at_s in self.wakes_at_s.items() if at_s <= now_s]:
            del self.wakes_at_s[name]
            orders += self._orders(self._tell(Deadline(name)), -1)
        return orders

    def refused(self, rank: int) -> None:
        """Note a push that does not even fit the run."""
        self.workers[rank].refused += 1

    def blocked_by(self, rank: int) -> int | None:
        """Return whom a waiting worker most likely waits for: who computes and is furthest back."""
        busy = [r for r in self.members if r != rank and not self.workers[r].waiting]
        return min(busy, key=lambda r: (self.workers[r].clock, r), default=None)

    def facts(self) -> dict[str, Any]:
        """Return plain totals: of each worker its clock, version, staleness and drops."""
        return {
            "version": self.version,
            "workers": {
                str(rank): {
                    "clock": notes.clock,
                    "version": notes.version,
                    "folded": notes.folded,
                    "dropped": dict(notes.dropped),
                    "refused": notes.refused,
                    "staleness": {str(k): n for k, n in sorted(notes.staleness.items())},
                }
                for rank, notes in self.workers.items()
            },
        }

    def _asked(self, notes: WorkerNotes, clock: int, pull: bool, alone: bool = False) -> None:
        notes.clock, notes.waiting, notes.pull, notes.alone = clock, True, pull, alone
        notes.asked_at_s = self._now_s

    def _tell(self, event: CentralEvent) -> Sequence[Action]:
        self.record(event)
        return self.central.on(event)

    def _orders(self, actions: Sequence[Action], cause: int) -> list[Order]:
        return [order for action in actions for order in self._order(action, cause)]

    def _order(self, action: Action, cause: int) -> list[Order]:
        if isinstance(action, Fold):
            for push in action.pushes:
                notes = self.workers[push.worker]
                notes.folded += 1
                notes.last = self.version - push.based_on
                notes.staleness[notes.last] += 1
            self.version += 1
            names = tuple((push.worker, push.clock) for push in action.pushes)
            return [Order("fold", names, action.weights, version=self.version)]
        if isinstance(action, Grant):
            notes = self.workers[action.rank]
            if not notes.waiting:
                raise RuntimeError(f"a grant for worker {action.rank}, which has not asked")
            notes.waiting = False
            notes.version = self.version
            return [
                Order(
                    "grant",
                    rank=action.rank,
                    clock=action.clock,
                    version=self.version,
                    pull=notes.pull,
                    staleness=notes.last,
                    cause=cause,
                    asked=notes.clock,
                    alone=notes.alone,
                )
            ]
        if isinstance(action, Drop):
            self.workers[action.push.worker].dropped[action.reason] += 1
            name = (action.push.worker, action.push.clock)
            return [Order("drop", (name,), version=self.version)]
        if isinstance(action, SetDeadline):
            self.wakes_at_s[action.name] = self._now_s + action.after_s
            return []
        raise RuntimeError(f"a parameter server cannot do {action}")


def to_wire(order: Order) -> list[Any]:
    """Return an order as plain values."""
    return [
        order.what,
        [list(name) for name in order.pushes],
        list(order.weights),
        *(order.rank, order.clock, order.version, order.pull, order.staleness, order.cause),
        order.asked,
    ]


def from_wire(value: Sequence[Any]) -> Order:
    """Return the order of ``to_wire``."""
    what, pushes, weights, *rest = value
    return Order(what, tuple((w, c) for w, c in pushes), tuple(weights), *rest)
