"""Data parallelism by all-reduce: every worker averages every gradient with all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.protocols.base import Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Layout


@protocols.register("all_reduce")
@dataclass(frozen=True)
class AllReduce(Protocol):
    """Average gradients in one collective per step; there is no server and nobody decides.

    On the waist a collective is a push and a pull whose grant comes when it ends: the machine says
    ``SendPush, SendPull``, the runtime enters the all-reduce, and answers ``Granted(clock)`` when
    the mean, weighted by samples, is there. ``version`` counts collectives.

    Waits for: all workers, at every step. Messages per step and worker: 2 (N - 1) sent. Bytes per
    step and worker: 2 P (N - 1) / N sent. A death: the run stops, or goes on without it.
    Exact: always.

    Example:
        >>> from freewheel.protocols import protocols
        >>> protocols.create("all_reduce").central() is None
        True

    References:
        Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
        2009.
    """

    name: ClassVar[str] = "all_reduce"
    layout: ClassVar[Layout] = "replicas"
    card: ClassVar[Card] = Card(
        waits_for="all workers, at every step",
        messages="2 (N - 1)",
        bytes="2 P (N - 1) / N",
        on_death="the run stops with an error that names it, or shrinks, by [run] on_death",
        exact="always: equal to one process that accumulates the same batches (sums differ in "
        "the order of addition)",
        reference='Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of '
        'workstations", 2009',
        paragraph="Every worker holds the whole model. After each step gradients are averaged, "
        "weighted by samples, in a ring or tree over all workers, and each applies the same "
        "update. The least traffic of all exact methods; the slowest worker sets the pace.",
    )

    def local(self, rank: int) -> Replica:
        """Return a machine that exchanges a gradient at every step."""
        return Replica()

    def central(self) -> None:
        """Return None: a collective needs no coordinator."""
        return
