"""Global batch aggregation: asynchronous, with the same global batch as synchronous training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from freewheel.aggregation.staleness import NoRule
from freewheel.protocols.base import Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.fedbuff import Buffer
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Layout


@protocols.register("gba")
@dataclass(frozen=True)
class GBA(Protocol):
    """Fold the mean of every ``batches`` gradients; one whose token is too old weighs nothing.

    The token of a gradient is the version that it is based on. Because an update has the same
    number of samples as under bsp, hyper-parameters carry over when switching between the two.

    Waits for: nobody. Messages per step and worker: 2. Bytes per step and worker: 2 P. A death:
    what it pushed stays. Exact: one worker; equal speeds without jitter equal bsp.

    Args:
        batches: gradients in one update, >= 1; None: as many as there are workers.
        tolerance: largest staleness, in versions, that is folded, >= 0.

    Example:
        >>> from freewheel.protocols import protocols
        >>> protocols.create("gba", {"tolerance": 2}).settings
        {'batches': None, 'tolerance': 2}

    References:
        Su et al., "GBA: A Tuning-free Approach to Switch between Synchronous and Asynchronous
        Training for Recommendation Model", 2022.
    """

    name: ClassVar[str] = "gba"
    layout: ClassVar[Layout] = "server"
    card: ClassVar[Card] = Card(
        waits_for="nobody",
        messages="2",
        bytes="2 P",
        on_death="what it pushed stays in the buffer; the global batch shrinks with N unless "
        "`batches` is given",
        exact="one worker equals plain PyTorch bit for bit (batches = 1 or left out)",
        reference='Su et al., "GBA: A Tuning-free Approach to Switch between Synchronous and '
        'Asynchronous Training for Recommendation Model", 2022',
        paragraph="Workers push gradients at their own speed; the server takes a step with the "
        "mean of every N of them, so that an update stands for the same global batch as under "
        "bsp. Each gradient carries the version it was computed on, and is dropped when that is "
        "more than `tolerance` versions old.",
    )

    batches: int | None = None
    tolerance: int = 4

    def __post_init__(self) -> None:
        if self.batches is not None:
            at_least("batches", self.batches, 1, "leave it out for one per worker")
        at_least("tolerance", self.tolerance, 0, "0 folds only gradients of the newest version")

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes a gradient at every step."""
        return Replica()

    def central(self) -> Buffer:
        """Return a machine that folds one global batch at a time."""
        return Buffer(NoRule(), self.batches, self.tolerance)
