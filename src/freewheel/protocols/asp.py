"""Asynchronous parallel: every push is an update of its own, nobody waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.aggregation import rule_of
from freewheel.aggregation.staleness import Rule, RuleSpec
from freewheel.protocols.base import Action, Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.members import Central
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Layout, Pushed


class OneByOne(Central):
    """Folds each push as it arrives, weighted by a staleness rule, and answers at once."""

    def __init__(self, rule: Rule) -> None:
        super().__init__()
        self._rule = rule

    def fold(self, event: Pushed) -> list[Action]:
        """Fold it now."""
        factor = self._rule.factor(self.staleness(event.push), len(self.members))
        return self.apply([event.push], [factor])


@protocols.register("asp")
@dataclass(frozen=True)
class ASP(Protocol):
    """Apply every gradient as it arrives, however stale.

    Waits for: nobody. Messages per step and worker: 2. Bytes per step and worker: 2 P. A death:
    stops nobody. Exact: one worker. Mean staleness with equal speeds: N - 1.

    Args:
        rescale: a staleness rule of ``freewheel.aggregation``: its name, or a table with settings.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.replicas import Joined, Push, Pushed
        >>> central = protocols.create("asp").central()
        >>> _ = central.on(Joined(0)), central.on(Joined(1))
        >>> [type(action).__name__ for action in central.on(Pushed(Push(1, 1, 0, 8), {}))]
        ['Fold', 'Grant']

    References:
        Dean et al., "Large Scale Distributed Deep Networks", 2012.
    """

    name: ClassVar[str] = "asp"
    layout: ClassVar[Layout] = "server"
    card: ClassVar[Card] = Card(
        waits_for="nobody",
        messages="2",
        bytes="2 P",
        on_death="nothing: the others do not notice",
        exact="one worker equals plain PyTorch bit for bit",
        reference='Dean et al., "Large Scale Distributed Deep Networks", 2012',
        paragraph="Each worker pushes its gradient, which the server applies at once, and goes on "
        "with the parameters of that moment. All workers run at full speed, but a gradient was "
        "computed on parameters that N - 1 others have changed meanwhile. Lower the learning rate "
        "or the momentum as N grows, or set rescale.",
    )

    rescale: RuleSpec = "none"

    def __post_init__(self) -> None:
        rule_of(self.rescale)

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes a gradient at every step."""
        return Replica()

    def central(self) -> OneByOne:
        """Return a machine that folds each push as it arrives."""
        return OneByOne(rule_of(self.rescale))
