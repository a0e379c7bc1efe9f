"""Buffered asynchronous aggregation: every k pushes make one update, nobody waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.aggregation import rule_of, sample_weights
from freewheel.aggregation.staleness import Rule, RuleSpec
from freewheel.protocols.base import Action, Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.members import Central
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Drop, Grant, Kind, Layout, Push, Pushed


class Buffer(Central):
    """Collects ``size`` pushes (None: as many as there are members), then folds their mean.

    Args:
        rule: scales each push by its staleness.
        size: pushes in one update.
        tolerance: staleness above which a push is dropped, not folded; None keeps all.
        steps: local steps that one grant covers.
    """

    def __init__(
        self, rule: Rule, size: int | None, tolerance: int | None = None, steps: int = 1
    ) -> None:
        super().__init__()
        self._rule, self._size = rule, size
        self._tolerance, self._steps = tolerance, steps
        self.buffer: list[Push] = []

    def fold(self, event: Pushed) -> list[Action]:
        """Add it to the buffer, and fold the buffer when it is full."""
        self.buffer.append(event.push)
        return self._flush() if len(self.buffer) >= self._full else []

    def asked(self, rank: int, clock: int) -> list[Action]:
        """Answer at once."""
        return [Grant(rank, clock + self._steps - 1)]

    def left(self, rank: int) -> list[Action]:
        """Fold what is there when the buffer is full for those who stay, or nobody stays."""
        return self._flush() if not self.members or len(self.buffer) >= self._full else []

    @property
    def _full(self) -> int:
        return self._size if self._size is not None else max(1, len(self.members))

    def _flush(self) -> list[Action]:
        tolerance = self._tolerance
        fresh: list[Push] = []
        drops: list[Action] = []
        for push in self.buffer:
            staleness = self.staleness(push)
            if tolerance is None or staleness <= tolerance:
                fresh.append(push)
            else:
                drops.append(Drop(push, f"stale: tolerance is {tolerance} versions"))
        shares = sample_weights([push.num_samples for push in fresh])
        workers = max(1, len(self.members))
        factors = [self._rule.factor(self.staleness(push), workers) for push in fresh]
        weights = [share * factor for share, factor in zip(shares, factors, strict=True)]
        self.buffer = []
        return [*drops, *self.apply(fresh, weights)]


@protocols.register("fedbuff")
@dataclass(frozen=True)
class FedBuff(Protocol):
    """Fold the mean of every ``k`` changes, each scaled by its staleness; nobody waits.

    Waits for: nobody. Messages per step and worker: 2 / local_steps. Bytes per step and worker:
    2 P / local_steps. A death: what it pushed stays in the buffer. Exact: one worker, k = 1.

    Args:
        k: pushes in one update, >= 1.
        local_steps: steps of the worker's own optimizer between two pushes, >= 1.
        max_staleness: drop a push that is staler than this; None drops none.
        rescale: a staleness rule of ``freewheel.aggregation``; the paper's is 1 / sqrt(1 + tau).

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.replicas import Joined, Kind, Push, Pushed
        >>> central = protocols.create("fedbuff", {"k": 2}).central()
        >>> _ = central.on(Joined(0))
        >>> [type(action).__name__ for action in central.on(Pushed(Push(0, 1, 0, 8), {}))]
        ['Grant']
        >>> [type(action).__name__ for action in central.on(Pushed(Push(0, 2, 0, 8), {}))]
        ['Fold', 'Grant']

    References:
        Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", 2022.
        Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", 2016 (softsync).
    """

    name: ClassVar[str] = "fedbuff"
    layout: ClassVar[Layout] = "server"
    pushes: ClassVar[Kind] = "delta"
    card: ClassVar[Card] = Card(
        waits_for="nobody",
        messages="2 / local_steps",
        bytes="2 P / local_steps",
        on_death="what it pushed stays in the buffer; the others go on",
        exact="one worker with k = 1 does plain training, up to the rounding of "
        "pulled + (local - pulled)",
        reference='Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", '
        "2022",
        paragraph="Each worker trains for local_steps with its own optimizer and pushes the "
        "change. The server collects k changes and applies their mean, each scaled down by its "
        "staleness. Between asp (k = 1) and bsp in noise, and nobody waits.",
    )

    k: int = 4
    local_steps: int = 1
    max_staleness: int | None = None
    rescale: RuleSpec = "fedasync_poly"

    def __post_init__(self) -> None:
        at_least("buffer size k", self.k, 1, "k = 1 applies every push by itself")
        at_least("local_steps", self.local_steps, 1)
        if self.max_staleness is not None:
            at_least("max_staleness", self.max_staleness, 0, "leave it out to drop none")
        rule_of(self.rescale)

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes the change since its last pull."""
        return Replica(self.pushes)

    def central(self) -> Buffer:
        """Return a machine that folds k changes at a time."""
        return Buffer(rule_of(self.rescale), self.k, self.max_staleness, self.local_steps)
