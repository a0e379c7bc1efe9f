"""Criteria on the clock alone: a fixed part of the budget, and a maximum to fall back on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freewheel.monitors.base import Evidence, Verdict, Word, criteria, fields_of, next_clock, number


@criteria.register("fixed_fraction")
class FixedFraction:
    """Switch when a fixed part of the budget is used up (Sync-Switch).

    Evidence: ``progress``, the part of all steps that is done, in [0, 1].

    Args:
        fraction: of the budget, in [0, 1]; 0 switches in the first step, 1 after the last.

    Raises:
        ValueError: the fraction is out of range.

    Example:
        >>> from freewheel.monitors.fraction import FixedFraction
        >>> rule = FixedFraction(0.25)
        >>> [rule.observe(step, {"progress": step / 8}).verdict for step in (1, 2)]
        ['stay', 'switch']

    References:
        Li, Mangoubi, Xu, Guo, "Sync-Switch: hybrid parameter synchronization for distributed deep
        learning", 2021.
    """

    name = "fixed_fraction"
    needs = ("progress",)

    def __init__(self, fraction: float = 0.25) -> None:
        if not 0.0 <= fraction <= 1.0:
            raise ValueError(f"fraction must lie in [0, 1], got {fraction}")
        self.fraction = fraction
        self.reset()

    def reset(self) -> None:
        """Forget the progress."""
        self._clock: int | None = None
        self._progress: float | None = None

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a step and judge; see ``Monitor.observe``."""
        self._clock = next_clock(self.name, clock, self._clock)
        progress = number(evidence, "progress")
        self._progress = self._progress if progress is None else progress
        if self._progress is None:
            return Verdict(self.name, "unsure", None, self.fraction)
        word: Word = "switch" if self._progress >= self.fraction else "stay"
        return Verdict(self.name, word, self._progress, self.fraction)

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        return {"clock": self._clock, "progress": self._progress}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        self._clock, self._progress = fields_of(self.name, state, "clock", "progress")


@criteria.register("maximum")
class Maximum:
    """Switch at a given clock whatever else is measured: what to fall back on in ``any_of``.

    Args:
        clock: the first clock at which it fires, >= 0.

    Raises:
        ValueError: the clock is negative.

    Example:
        >>> from freewheel.monitors.fraction import Maximum
        >>> rule = Maximum(clock=100)
        >>> [rule.observe(clock, {}).verdict for clock in (99, 100)]
        ['stay', 'switch']
    """

    name = "maximum"
    needs: tuple[str, ...] = ()

    def __init__(self, clock: int = 10_000) -> None:
        if clock < 0:
            raise ValueError(f"clock must be >= 0 steps, got {clock}")
        self.clock = clock
        self.reset()

    def reset(self) -> None:
        """Forget the clock."""
        self._clock: int | None = None

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a step and judge; see ``Monitor.observe``."""
        self._clock = next_clock(self.name, clock, self._clock)
        word: Word = "switch" if clock >= self.clock else "stay"
        return Verdict(self.name, word, float(clock), float(self.clock))

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        return {"clock": self._clock}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave."""
        (self._clock,) = fields_of(self.name, state, "clock")
