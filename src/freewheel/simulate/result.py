"""What a simulated run did, and whom to tell while it runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from freewheel.protocols.base import CentralEvent
from freewheel.protocols.replicas import Drop, Evidence, Fold

if TYPE_CHECKING:
    from freewheel.simulate.worker import Worker


class Observer:
    """Is told what happens, in virtual-time order; does nothing unless overridden.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.simulate import Budget, Compute, CostOnly, Observer, Simulation
        >>> class Steps(Observer):
        ...     count = 0
        ...     def started(self, worker):
        ...         self.count += 1
        >>> steps, work = Steps(), CostOnly(Budget(steps=5, num_workers=2), num_bytes=0)
        >>> _ = Simulation(protocols.create("asp"), work, 2, Compute(1.0), observer=steps).run()
        >>> steps.count
        10
    """

    def started(self, worker: Worker) -> None:
        """A worker begins a step."""

    def stepped(self, worker: Worker, num_samples: int, evidence: Evidence, seconds: float) -> None:
        """A worker ended a step."""

    def pushed(self, worker: Worker, clock: int) -> None:
        """A worker sent a push; ``clock`` steps are in it and those before."""

    def folded(self, fold: Fold, version: int, now_s: float) -> None:
        """The server made version ``version``."""

    def dropped(self, drop: Drop, now_s: float) -> None:
        """The server refused a push."""

    def changed(self, what: str, now_s: float, **facts: Any) -> None:
        """A worker joined, left or died, or the topology was switched."""


@dataclass
class Result:
    """Totals of a simulated run. Times are virtual seconds.

    Args:
        virtual_s: when the last push had been folded or dropped.
        version: updates made.
        steps: local steps finished, of all workers.
        samples: in them.
        num_folded: pushes folded.
        dropped: pushes not folded, by reason.
        lost: pushes that died with their sender, on the way.
        staleness: how many folded pushes had each staleness.
        compute_s: of each rank.
        wait_s: of each rank, from its request to the reply.
        bytes_sent: of each rank, headers included; the server is rank -1.
        bytes_received: likewise.
        messages_sent: likewise.
        arrivals: what the central machine was told, in order.
    """

    virtual_s: float = 0.0
    version: int = 0
    steps: int = 0
    samples: int = 0
    num_folded: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    staleness: Counter[int] = field(default_factory=Counter)
    compute_s: Mapping[int, float] = field(default_factory=dict)
    wait_s: Mapping[int, float] = field(default_factory=dict)
    bytes_sent: Mapping[int, int] = field(default_factory=dict)
    bytes_received: Mapping[int, int] = field(default_factory=dict)
    messages_sent: Mapping[int, int] = field(default_factory=dict)
    arrivals: list[CentralEvent] = field(default_factory=list)

    def median_staleness(self) -> int:
        """Return the median staleness of folded pushes (0 when there are none)."""
        seen, half = 0, sum(self.staleness.values()) / 2
        for staleness in sorted(self.staleness):
            seen += self.staleness[staleness]
            if seen >= half:
                return staleness
        return 0
