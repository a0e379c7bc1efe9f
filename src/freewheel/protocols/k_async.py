"""K-async: an update for the first K gradients, whoever they come from; late ones join the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from freewheel.aggregation import rule_of
from freewheel.aggregation.staleness import Rule, RuleSpec
from freewheel.protocols.base import Action, Event, Protocol
from freewheel.protocols.bsp import Round
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Layout, Push, Pushed

#: Weight of the past in a worker's mean step time.
_DECAY = 0.8


def fastest_size(durations_s: Sequence[float]) -> int:
    r"""Return the K that gives most gradients per second: the largest :math:`k / d_{(k)}`.

    Args:
        durations_s: how long a step takes each worker, in seconds.

    Example:
        >>> from freewheel.protocols.k_async import fastest_size
        >>> fastest_size([1.0] * 6 + [4.0] * 2), fastest_size([1.0, 1.1, 1.2])
        (6, 3)
    """
    ranked = sorted(durations_s)
    return max(range(1, len(ranked) + 1), key=lambda k: (k / max(ranked[k - 1], 1e-12), k))


class FirstK(Round):
    """A round that ends when K members have asked; who comes later is in the next round.

    Args:
        k: members a round waits for; None: as many as are fastest together, by their step times.
        rule: scales each push by its staleness.
    """

    def __init__(self, k: int | None, rule: Rule) -> None:
        super().__init__()
        self._k, self._rule = k, rule
        self.durations_s: dict[int, float] = {}

    def on(self, event: Event, /) -> Sequence[Action]:
        """Note how long a push took, then see to the round."""
        if isinstance(event, Pushed) and event.push.worker in self.members:
            rank, took_s = event.push.worker, event.evidence.get("duration_s", 0.0)
            before = self.durations_s.get(rank, took_s)
            self.durations_s[rank] = _DECAY * before + (1.0 - _DECAY) * took_s
        return super().on(event)

    def apply(self, pushes: Sequence[Push], weights: Sequence[float]) -> list[Action]:
        """Return the fold of these pushes, late ones scaled by their staleness."""
        num_workers = max(1, len(self.members))
        scaled = [
            weight * self._rule.factor(self.staleness(push), num_workers)
            for push, weight in zip(pushes, weights, strict=True)
        ]
        return super().apply(pushes, scaled)

    def left(self, rank: int) -> list[Action]:
        """Forget its pace, and wait for it no longer."""
        self.durations_s.pop(rank, None)
        return super().left(rank)

    @property
    def enough(self) -> int:
        """How many requests end a round."""
        if self._k is not None:
            return min(self._k, max(1, len(self.members)))
        known = [self.durations_s[rank] for rank in sorted(self.members & self.durations_s.keys())]
        # until every member has pushed once, nobody can say who is slow
        if len(known) < len(self.members) or not known:
            return max(1, len(self.members))
        return fastest_size(known)


@protocols.register("k_async")
@dataclass(frozen=True)
class KAsync(Protocol):
    """Fold the first K gradients as one update; gradients that come late are in the next one.

    Unlike ``backup_workers`` nothing is dropped, unlike ``asp`` the fast workers' gradients are
    fresh, so that learning rate and momentum of synchronous training carry over.

    Waits for: the K-th fastest worker. Messages per step and worker: 2. Bytes per step and worker:
    2 P. A death: the round goes on without it; its last push counts. Exact: k = N.

    Args:
        k: gradients that an update waits for, >= 1; None: the number with which most gradients
            come per second, by the step times that are seen.
        rescale: a staleness rule of ``freewheel.aggregation``: its name, or a table with settings.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.replicas import Joined, Push, Pushed
        >>> central = protocols.create("k_async", {"k": 1}).central()
        >>> _ = central.on(Joined(0)), central.on(Joined(1))
        >>> [type(action).__name__ for action in central.on(Pushed(Push(0, 1, 0, 8), {}))]
        ['Fold', 'Grant']

    References:
        Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the Race:
        Error-Runtime Trade-offs in Distributed SGD", 2018.
    """

    name: ClassVar[str] = "k_async"
    layout: ClassVar[Layout] = "server"
    card: ClassVar[Card] = Card(
        waits_for="the K-th fastest worker, at every step",
        messages="2",
        bytes="2 P",
        on_death="the round goes on without it; a push of its that arrived is folded",
        exact="k = N equals bsp; one worker equals plain PyTorch bit for bit",
        reference='Dutta, Joshi, Ghosh, Dube, Nagpurkar, "Slow and Stale Gradients Can Win the '
        'Race: Error-Runtime Trade-offs in Distributed SGD", 2018',
        paragraph="An update waits for the first K gradients of all workers; one that comes later "
        "is in the next update, stale but not lost. The fast workers stay in step, so that "
        "learning rate and momentum need no change, and a slow one holds nobody up. Without k it "
        "takes the K with which most gradients come per second, by measured step times: all of "
        "them where workers are equal.",
    )

    k: int | None = None
    rescale: RuleSpec = "none"

    def __post_init__(self) -> None:
        if self.k is not None:
            at_least("k", self.k, 1, "leave it out to let measured step times decide")
        rule_of(self.rescale)

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes a gradient at every step."""
        return Replica()

    def central(self) -> FirstK:
        """Return a machine that ends a round with its K-th gradient."""
        return FirstK(self.k, rule_of(self.rescale))
