"""Local SGD: k steps with the worker's own optimizer, then the mean of all parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.protocols.base import Protocol
from freewheel.protocols.bsp import Round
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Kind, Layout


@protocols.register("local_sgd")
@dataclass(frozen=True)
class LocalSGD(Protocol):
    """Average parameters, weighted by samples, every ``k`` local steps.

    Waits for: all workers, every k steps. Messages per step and worker: 2 / k. Bytes per step and
    worker: 2 P / k. A death: the round goes on without it. Exact: k = 1 with plain SGD.

    Args:
        k: local steps between two averages, >= 1.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.replicas import Joined, Kind
        >>> protocols.create("local_sgd", {"k": 8}).central().on(Joined(0))
        [Grant(rank=0, clock=7)]

    References:
        Stich, "Local SGD Converges Fast and Communicates Little", 2019.
    """

    name: ClassVar[str] = "local_sgd"
    layout: ClassVar[Layout] = "server"
    pushes: ClassVar[Kind] = "parameters"
    card: ClassVar[Card] = Card(
        waits_for="all workers, every k steps",
        messages="2 / k",
        bytes="2 P / k",
        on_death="the round goes on without it; parameters of its that arrived are averaged in",
        exact="k = 1 with plain SGD equals bsp but for the order of rounding; one worker does "
        "plain training, its parameters passing through the server unchanged",
        reference='Stich, "Local SGD Converges Fast and Communicates Little", 2019',
        paragraph="Each worker trains alone for k steps with its own optimizer; then the "
        "parameters of all are averaged, weighted by the samples behind them, and everyone goes "
        "on from the mean. Traffic falls by k; the models drift apart between two averages.",
    )

    k: int = 8

    def __post_init__(self) -> None:
        at_least("local steps k", self.k, 1, "k = 1 averages at every step")

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes parameters when its grant is used up."""
        return Replica(self.pushes)

    def central(self) -> Round:
        """Return a machine that averages whole rounds and grants k steps at a time."""
        return Round(steps=self.k)
