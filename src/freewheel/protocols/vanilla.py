"""Vanilla model parallelism: every micro-batch crosses every cut, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from freewheel.protocols.base import Action, Event, Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.registry import protocols
from freewheel.protocols.replicas import Layout
from freewheel.protocols.state import PlainState


class Silent(PlainState):
    """A stage machine that never asks for anything: without a plan every clock is ``Sync()``."""

    def on(self, event: Event, /) -> Sequence[Action]:
        """Ask for nothing."""
        return ()


@protocols.register("vanilla")
@dataclass(frozen=True)
class Vanilla(Protocol):
    """Exchange activations and their gradients at every step; the reference for all stages.

    Waits for: each stage for its neighbours, each micro-batch. Messages per step: 2 (S - 1) M with
    M micro-batches. Bytes per step: 2 (S - 1) A. A death: the run stops, or the stage restarts from
    its checkpoint. Exact: always.

    Example:
        >>> from freewheel.protocols import protocols
        >>> protocols.create("vanilla").central() is None
        True

    References:
        Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
        Parallelism", 2019.
    """

    name: ClassVar[str] = "vanilla"
    layout: ClassVar[Layout] = "pipeline"
    card: ClassVar[Card] = Card(
        waits_for="each stage for its two neighbours, at every micro-batch",
        messages="2 (S - 1) M, with M micro-batches",
        bytes="2 (S - 1) A",
        on_death="the run stops, or the stage restarts from its checkpoint ([run] on_death)",
        exact="always: equal to one process on the same micro-batches",
        reference='Huang et al., "GPipe: Efficient Training of Giant Neural Networks using '
        'Pipeline Parallelism", 2019',
        paragraph="The model is cut into stages, one per process. Activations cross every cut "
        "forward and their gradients cross it backward, for every micro-batch of every step. "
        "Nothing is approximated: it is the reference that every other stage protocol is "
        "measured against.",
    )

    def local(self, rank: int) -> Silent:
        """Return a machine that never proposes anything."""
        return Silent()

    def central(self) -> None:
        """Return None: there is nothing to decide."""
        return
