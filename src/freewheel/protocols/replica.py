"""The machine beside a worker that most protocols share: run while granted, then push and pull."""

from __future__ import annotations

from collections.abc import Sequence

from freewheel.protocols.base import Action, Event, StepDone
from freewheel.protocols.replicas import Ended, Granted, Kind, SendPull, SendPush, Start
from freewheel.protocols.state import PlainState


class Replica(PlainState):
    """Starts steps up to the granted clock without a message, then pushes and pulls in one request.

    Args:
        kind: what it pushes.
        mix: how far pulled parameters replace its own, see ``SendPull``.

    Example:
        >>> from freewheel.protocols.replica import Replica
        >>> from freewheel.protocols.replicas import Granted
        >>> Replica().on(Granted(clock=0, version=0))
        (Start(clock=0),)
    """

    def __init__(self, kind: Kind = "gradient", mix: float = 1.0) -> None:
        self._kind: Kind = kind
        self._mix = mix
        self.clock = 0
        self.granted = -1
        self.pushed = 0

    def on(self, event: Event, /) -> Sequence[Action]:
        """Start the next step, or push and pull; at the end push what was not pushed."""
        if isinstance(event, StepDone):
            self.clock = event.clock
            if self.clock <= self.granted:
                return (Start(self.clock),)
            self.pushed = self.clock
            return SendPush(self._kind), SendPull(self._mix)
        if isinstance(event, Granted):
            self.granted = max(self.granted, event.clock)
            return (Start(self.clock),)
        if isinstance(event, Ended) and self.clock > self.pushed:
            self.pushed = self.clock
            return (SendPush(self._kind),)
        return ()
