"""What stage machines are told and what they ask for: the stage half of the waist.

Before the first plan every clock is ``Sync()``. The central machine runs beside the last stage.
Proposals ride forward and the plan backward in headers of tensors that cross anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Sync:
    """Round: ``steps`` exact exchanges, coded by the codec of that name (None: as configured)."""

    steps: int = 1
    codec: str | None = None


@dataclass(frozen=True, slots=True)
class Local:
    """Round: ``steps`` steps on local objectives, nothing crosses backward."""

    steps: int


@dataclass(frozen=True, slots=True)
class Coast:
    """Round: ``steps`` steps by prediction, nothing crosses."""

    steps: int


@dataclass(frozen=True, slots=True)
class Replay:
    """Round: ``steps`` steps on cached boundary tensors, nothing crosses."""

    steps: int


Round: TypeAlias = Sync | Local | Coast | Replay


@dataclass(frozen=True, slots=True)
class Plan:
    """Central action: from ``from_clock`` on repeat ``rounds``, until a later plan takes over.

    ``from_clock`` is later than the clock of every micro-batch in flight, see ``Proposed``.
    """

    from_clock: int
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Planned:
    """Local event: this plan is agreed."""

    plan: Plan


@dataclass(frozen=True, slots=True)
class Propose:
    """Local action: tell the central machine, in the next forward header, what this stage wants."""

    what: str


@dataclass(frozen=True, slots=True)
class Proposed:
    """Central event: a stage wants ``what``; no micro-batch in flight is past ``clock``."""

    by_stage: int
    what: str
    clock: int


@dataclass(frozen=True, slots=True)
class Rollback:
    """Central action: all stages return to their state at ``to_clock``."""

    to_clock: int
