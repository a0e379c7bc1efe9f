"""Elastic averaging SGD: workers and a centre pull at each other, now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.protocols.base import Action, Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.members import Central
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Grant, Kind, Layout, Pushed


class Centre(Central):
    """Moves the centre by alpha towards every set of parameters that arrives."""

    def __init__(self, alpha: float, period: int) -> None:
        super().__init__()
        self._alpha, self._period = alpha, period

    def fold(self, event: Pushed) -> list[Action]:
        """Fold it now, with weight alpha."""
        return self.apply([event.push], [self._alpha])

    def asked(self, rank: int, clock: int) -> list[Action]:
        """Answer at once."""
        return [Grant(rank, clock + self._period - 1)]


@protocols.register("easgd")
@dataclass(frozen=True)
class EASGD(Protocol):
    """Every ``period`` steps: ``x_i -= alpha (x_i - x)`` and ``x += alpha (x_i - x)``.

    The worker gets the centre x after its own push moved it; there ``x_i - x`` has shrunk by
    (1 - alpha), so it mixes in ``alpha / (1 - alpha)``, which gives the symmetric update.

    Waits for: nobody. Messages per step and worker: 2 / period. Bytes per step and worker:
    2 P / period. A death: stops nobody. Exact: none; the result is the centre.

    Args:
        alpha: strength of the spring, in (0, 0.5]; about 0.9 / N is the paper's.
        period: local steps between two exchanges, >= 1.

    Example:
        >>> from freewheel.protocols import protocols
        >>> protocols.create("easgd", {"alpha": 0.5, "period": 4}).local(0)._mix
        1.0

    References:
        Zhang, Choromanska, LeCun, "Deep learning with Elastic Averaging SGD", 2015.
    """

    name: ClassVar[str] = "easgd"
    layout: ClassVar[Layout] = "server"
    pushes: ClassVar[Kind] = "parameters"
    card: ClassVar[Card] = Card(
        waits_for="nobody",
        messages="2 / period",
        bytes="2 P / period",
        on_death="nothing: the others do not notice",
        exact="none: the result is the centre, a moving average of the workers (one worker with "
        "alpha = 0.5 and period = 1 keeps training from its own average with the centre)",
        reference='Zhang, Choromanska, LeCun, "Deep learning with Elastic Averaging SGD", 2015',
        paragraph="Each worker trains alone and is tied to a centre by a spring: every `period` "
        "steps both move towards each other by alpha times their difference. Workers may explore "
        "different places, and traffic is low; the centre is what is evaluated and kept.",
    )

    alpha: float = 0.1
    period: int = 4

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 0.5:
            raise ValueError(
                f"alpha must be in (0, 0.5], got {self.alpha}; about 0.9 / workers is usual"
            )
        at_least("period", self.period, 1)

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes its parameters and mixes in the centre's."""
        return Replica(self.pushes, mix=self.alpha / (1 - self.alpha))

    def central(self) -> Centre:
        """Return a machine that moves the centre."""
        return Centre(self.alpha, self.period)
