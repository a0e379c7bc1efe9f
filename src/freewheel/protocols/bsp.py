"""Bulk synchronous parallel: a round is one push of every worker, folded as one update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.aggregation import sample_weights
from freewheel.protocols.base import Action, Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.members import Central
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Grant, Layout, Push, Pushed


class Round(Central):
    """Holds every request until all but ``spare`` members have asked, then folds and answers all.

    Args:
        steps: local steps that one grant covers.
        spare: members that a round does not wait for.
    """

    def __init__(self, steps: int = 1, spare: int = 0) -> None:
        super().__init__()
        self._steps = steps
        self._spare = spare
        self.pushes: list[Push] = []
        self.waiting: dict[int, int] = {}

    def fold(self, event: Pushed) -> list[Action]:
        """Keep the push for the end of the round."""
        self.pushes.append(event.push)
        return []

    def asked(self, rank: int, clock: int) -> list[Action]:
        """Let the worker wait for the end of the round, which may be now."""
        self.waiting[rank] = clock
        return self.close()

    def joined(self, rank: int, clock: int) -> list[Action]:
        """Let a newcomer take part in the round that is open."""
        return [Grant(rank, clock + self._steps - 1)]

    def left(self, rank: int) -> list[Action]:
        """Stop waiting for it; what it pushed stays in the round."""
        self.waiting.pop(rank, None)
        return self.close()

    @property
    def enough(self) -> int:
        """How many requests end a round."""
        return max(1, len(self.members) - self._spare)

    def close(self) -> list[Action]:
        """End the round if enough have asked: one fold, weighted by samples, and all grants."""
        if self.members and len(self.waiting) < self.enough:
            return []
        # Sorted by rank, so that sums do not depend on who came first.
        pushes = sorted(self.pushes, key=lambda push: (push.worker, push.clock))
        weights = sample_weights([push.num_samples for push in pushes])
        grants = [
            Grant(rank, self.waiting[rank] + self._steps - 1) for rank in sorted(self.waiting)
        ]
        self.pushes, self.waiting = [], {}
        return [*self.apply(pushes, weights), *grants]


@protocols.register("bsp")
@dataclass(frozen=True)
class BSP(Protocol):
    """Fold one gradient of every worker as one update, then let all go on.

    Waits for: all workers, at every step. Messages per step and worker: 2. Bytes per step and
    worker: 2 P. A death: the round goes on without it; its last push counts. Exact: always.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.replicas import Joined, Push, Pushed
        >>> central = protocols.create("bsp").central()
        >>> _ = central.on(Joined(0)), central.on(Joined(1))
        >>> central.on(Pushed(Push(0, 1, 0, num_samples=3), {}))
        []
        >>> central.on(Pushed(Push(1, 1, 0, num_samples=1), {}))[0].weights
        (0.75, 0.25)

    References:
        Valiant, "A bridging model for parallel computation", 1990.
    """

    name: ClassVar[str] = "bsp"
    layout: ClassVar[Layout] = "server"
    card: ClassVar[Card] = Card(
        waits_for="all workers, at every step",
        messages="2",
        bytes="2 P",
        on_death="the round goes on without it; a push of its that arrived is folded",
        exact="always: the mean of all gradients, weighted by samples; one worker equals plain "
        "PyTorch bit for bit",
        reference='Valiant, "A bridging model for parallel computation", 1990',
        paragraph="Each worker pushes a gradient and waits; when all have pushed, the server takes "
        "one optimizer step with their mean, weighted by samples, and answers everyone with the "
        "new parameters. No staleness; the slowest worker sets the pace.",
    )

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes a gradient at every step."""
        return Replica()

    def central(self) -> Round:
        """Return a machine that folds whole rounds."""
        return Round()
