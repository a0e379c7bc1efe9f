"""Stale synchronous parallel: asynchronous, but nobody is far ahead of the slowest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.aggregation import rule_of
from freewheel.aggregation.staleness import RuleSpec
from freewheel.protocols.base import Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.clocks import Paced
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Layout


@protocols.register("ssp")
@dataclass(frozen=True)
class SSP(Protocol):
    """Let a worker start a step only while ``clock - min clock <= staleness``.

    Waits for: the slowest worker, when more than ``staleness`` steps ahead of it. Messages per step
    and worker: 2. Bytes per step and worker: 2 P. A death: its clock is forgotten, whoever waited
    for it goes on. Exact: one worker. Counting the step in flight, clocks differ by at most
    staleness + 1.

    Args:
        staleness: the bound, in steps, >= 0.
        rescale: a staleness rule of ``freewheel.aggregation``: its name, or a table with settings.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.replicas import Joined, Push, Pushed
        >>> central = protocols.create("ssp", {"staleness": 0}).central()
        >>> _ = central.on(Joined(0)), central.on(Joined(1))
        >>> [type(action).__name__ for action in central.on(Pushed(Push(0, 1, 0, 8), {}))]
        ['Fold']
        >>> central.on(Pushed(Push(1, 1, 0, 8), {}))[1:]
        [Grant(rank=1, clock=1), Grant(rank=0, clock=1)]

    References:
        Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
        Server", 2013.
    """

    name: ClassVar[str] = "ssp"
    layout: ClassVar[Layout] = "server"
    card: ClassVar[Card] = Card(
        waits_for="the slowest worker, when more than `staleness` steps ahead of it",
        messages="2",
        bytes="2 P",
        on_death="its clock is forgotten; whoever waited for it goes on",
        exact="one worker equals plain PyTorch bit for bit; staleness = 0 keeps all clocks level "
        "(but each push stays an update of its own, unlike bsp)",
        reference='Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel '
        'Parameter Server", 2013',
        paragraph="Like asp, but a worker that is more than `staleness` steps ahead of the slowest "
        "one waits for it. Short delays are absorbed; a persistent straggler sets the pace in "
        "the end, though never by more than the bound at once.",
    )

    staleness: int = 3
    rescale: RuleSpec = "none"

    def __post_init__(self) -> None:
        at_least("staleness bound", self.staleness, 0, 'use protocol = "asp" for no bound')
        rule_of(self.rescale)

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes a gradient at every step."""
        return Replica()

    def central(self) -> Paced:
        """Return a machine that keeps all within the bound."""
        return Paced(rule_of(self.rescale), self.staleness)
