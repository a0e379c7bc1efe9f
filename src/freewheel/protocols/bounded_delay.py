"""Bounded delay: tasks are numbered as they start, and none starts while an old one runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.aggregation import rule_of
from freewheel.aggregation.staleness import Rule, RuleSpec
from freewheel.protocols.asp import OneByOne
from freewheel.protocols.base import Action, Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Grant, Layout


class Numbered(OneByOne):
    """Numbers steps in the order in which they are granted, over all workers.

    Args:
        rule: the staleness rule of the folds.
        tau: task t starts only when all tasks before t - tau are finished.
    """

    def __init__(self, rule: Rule, tau: int) -> None:
        super().__init__(rule)
        self._tau = tau
        self.next = 0
        # By rank, in the order of their numbers: the first is the oldest that runs.
        self.running: dict[int, int] = {}
        self.waiting: dict[int, int] = {}

    def asked(self, rank: int, clock: int) -> list[Action]:
        """Its task is finished; queue it for the next one."""
        self.running.pop(rank, None)
        self.waiting[rank] = clock
        return self._start()

    def left(self, rank: int) -> list[Action]:
        """Count its task as finished."""
        self.running.pop(rank, None)
        self.waiting.pop(rank, None)
        return self._start()

    def _start(self) -> list[Action]:
        grants: list[Action] = []
        while self.waiting:
            oldest = next(iter(self.running.values()), self.next)
            if self.next - oldest > self._tau:
                break
            rank = next(iter(self.waiting))
            grants.append(Grant(rank, self.waiting.pop(rank)))
            self.running[rank] = self.next
            self.next += 1
        return grants


@protocols.register("bounded_delay")
@dataclass(frozen=True)
class BoundedDelay(Protocol):
    """Let task t start only when every task before ``t - tau`` is finished; a task is one step.

    Tasks are numbered over all workers, so that tau bounds what a gradient can miss, whatever N is:
    its staleness is at most 2 tau. Lower the learning rate as tau grows.

    Waits for: the oldest running step, when tau later ones have started. Messages per step and
    worker: 2. Bytes per step and worker: 2 P. A death: its task counts as finished. Exact: one
    worker; tau = 0 is sequential whatever N is.

    Args:
        tau: how many later tasks may start while one runs, >= 0.
        rescale: a staleness rule of ``freewheel.aggregation``: its name, or a table with settings.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.replicas import Joined
        >>> central = protocols.create("bounded_delay", {"tau": 1}).central()
        >>> [central.on(Joined(rank)) for rank in range(3)]
        [[Grant(rank=0, clock=0)], [Grant(rank=1, clock=0)], []]

    References:
        Li et al., "Scaling Distributed Machine Learning with the Parameter Server", 2014.
    """

    name: ClassVar[str] = "bounded_delay"
    layout: ClassVar[Layout] = "server"
    card: ClassVar[Card] = Card(
        waits_for="the oldest running step, when `tau` later ones have started",
        messages="2",
        bytes="2 P",
        on_death="its step counts as finished",
        exact="one worker equals plain PyTorch bit for bit; tau = 0 runs one step at a time over "
        "all workers: plain SGD on their batches in turn",
        reference='Li et al., "Scaling Distributed Machine Learning with the Parameter Server", '
        "2014",
        paragraph="Steps are numbered over all workers in the order in which they start; step t "
        "waits until all before t - tau are finished. tau = 0 is sequential, a large tau is asp. "
        "It bounds how many updates a gradient can have missed, rather than who may be ahead.",
    )

    tau: int = 8
    rescale: RuleSpec = "none"

    def __post_init__(self) -> None:
        at_least("delay tau", self.tau, 0, 'use protocol = "asp" for no bound')
        rule_of(self.rescale)

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes a gradient at every step."""
        return Replica()

    def central(self) -> Numbered:
        """Return a machine that numbers tasks."""
        return Numbered(rule_of(self.rescale), self.tau)
