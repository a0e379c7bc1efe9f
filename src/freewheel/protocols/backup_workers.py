"""Synchronous training with backup workers: a round ends without the last b."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from freewheel.protocols.base import Action, Event, Protocol
from freewheel.protocols.bsp import Round
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Drop, Grant, Layout, Pushed


class FirstOf(Round):
    """A round that closes early, and sends those who come too late straight into the next."""

    def on(self, event: Event, /) -> Sequence[Action]:
        """Drop a push that is based on an older version than the open round's."""
        if (
            isinstance(event, Pushed)
            and event.push.worker in self.members
            and self.staleness(event.push) > 0
        ):
            push = event.push
            late = f"late by {self.staleness(push)} rounds"
            return [Drop(push, late), Grant(push.worker, push.clock)]
        return super().on(event)


@protocols.register("backup_workers")
@dataclass(frozen=True)
class BackupWorkers(Protocol):
    """Fold the first N - b gradients of each round; drop the b that come late.

    Waits for: the first N - b workers, at every step. Messages per step and worker: 2. Bytes per
    step and worker: 2 P. A death: one backup fewer; the round goes on. Exact: b = 0 equals bsp.

    Args:
        b: how many workers a round does not wait for, >= 0; at least one is always waited for.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.replicas import Joined, Push, Pushed
        >>> central = protocols.create("backup_workers", {"b": 1}).central()
        >>> _ = central.on(Joined(0)), central.on(Joined(1))
        >>> [type(action).__name__ for action in central.on(Pushed(Push(0, 1, 0, 8), {}))]
        ['Fold', 'Grant']
        >>> central.on(Pushed(Push(1, 1, 0, 8), {}))[0].reason
        'late by 1 rounds'

    References:
        Chen et al., "Revisiting Distributed Synchronous SGD", 2016.
    """

    name: ClassVar[str] = "backup_workers"
    layout: ClassVar[Layout] = "server"
    card: ClassVar[Card] = Card(
        waits_for="the first N - b workers, at every step",
        messages="2",
        bytes="2 P",
        on_death="the round goes on without it: N falls by one",
        exact="b = 0 equals bsp; one worker equals plain PyTorch bit for bit",
        reference='Chen et al., "Revisiting Distributed Synchronous SGD", 2016',
        paragraph="Like bsp, but a round closes when N - b gradients are in; later ones are "
        "dropped and their workers go straight on with the new parameters. It trades the samples "
        "of the slowest for the time of all; with a persistent straggler its data is never used.",
    )

    b: int = 1

    def __post_init__(self) -> None:
        at_least("backup workers b", self.b, 0, "b = 0 waits for all")

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes a gradient at every step."""
        return Replica()

    def central(self) -> FirstOf:
        """Return a machine that closes a round without its last b."""
        return FirstOf(spare=self.b)
