"""The frame of a central machine: who is a member, which pushes are fit to fold, which version."""

from __future__ import annotations

from collections.abc import Sequence

from freewheel.protocols.base import Action, Event
from freewheel.protocols.replicas import (
    Drop,
    Fold,
    Grant,
    Joined,
    Left,
    Pulled,
    Push,
    Pushed,
    Reported,
)
from freewheel.protocols.state import PlainState


class Central(PlainState):
    """Keeps the members and the version, and refuses pushes that nobody may fold.

    A protocol overrides ``fold`` (what a fit push does) and, where it makes workers wait, ``asked``
    (when a request is answered), ``joined`` and ``left``.
    """

    def __init__(self) -> None:
        self.version = 0
        self.members: set[int] = set()

    def on(self, event: Event, /) -> Sequence[Action]:
        """Dispatch; a push of a worker that has left is dropped, one unfit to fold still counts."""
        if isinstance(event, Pushed):
            push = event.push
            if push.worker not in self.members:
                return [Drop(push, "its worker has left")]
            unfit = self.unfit(event)
            first = [Drop(push, unfit)] if unfit else self.fold(event)
            return [*first, *self.asked(push.worker, push.clock)]
        if isinstance(event, Pulled):
            return self.asked(event.rank, event.clock) if event.rank in self.members else []
        if isinstance(event, Reported):
            return self.reported(event) if event.rank in self.members else []
        if isinstance(event, Joined):
            # A worker that was restarted may be back before its death was noticed.
            before = self.on(Left(event.rank))
            self.members.add(event.rank)
            return [*before, *self.joined(event.rank, event.clock)]
        if isinstance(event, Left) and event.rank in self.members:
            self.members.discard(event.rank)
            return self.left(event.rank)
        return []

    def unfit(self, event: Pushed) -> str:
        """Return why a push cannot be folded, or an empty string."""
        if event.push.num_samples == 0:
            return "no samples"
        return "non-finite values" if event.evidence.get("non_finite", 0.0) > 0 else ""

    def staleness(self, push: Push) -> int:
        """Return the versions applied since its worker pulled."""
        return self.version - push.based_on

    def apply(self, pushes: Sequence[Push], weights: Sequence[float]) -> list[Action]:
        """Return the fold of these pushes as the next version; nothing when there are none."""
        if not pushes:
            return []
        self.version += 1
        return [Fold(tuple(pushes), tuple(weights))]

    def fold(self, event: Pushed) -> list[Action]:
        """Return what a fit push leads to: a fold now, or nothing yet."""
        raise NotImplementedError

    def asked(self, rank: int, clock: int) -> list[Action]:
        """Return the answer to a request: by default a grant at once."""
        return [Grant(rank, clock)]

    def reported(self, event: Reported) -> list[Action]:
        """Return the answer to what a worker measured: by default as to any request."""
        return self.asked(event.rank, event.clock)

    def joined(self, rank: int, clock: int) -> list[Action]:
        """Return the answer to a newcomer: by default as to any request."""
        return self.asked(rank, clock)

    def left(self, rank: int) -> list[Action]:
        """Return what follows from a worker's end or death."""
        return []
