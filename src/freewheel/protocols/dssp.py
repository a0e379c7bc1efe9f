"""Dynamic SSP: the bound is chosen for each worker, at run time, from recent push intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from freewheel.aggregation import rule_of
from freewheel.aggregation.staleness import Rule, RuleSpec
from freewheel.protocols.base import Action, Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.clocks import Paced
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Layout, Pushed


class Predicting(Paced):
    """Gives a worker that reaches ``lower`` as many extra steps as make its wait shortest.

    ``at_s`` is when each last pushed and ``step_s`` how long its step took, both from the durations
    in events. After r extra steps a fast worker would push at ``at_s + r * step_s``; it then waits
    for the slowest one's next push. The r in [0, upper - lower] with the least wait is taken.
    """

    def __init__(self, rule: Rule, lower: int, upper: int) -> None:
        super().__init__(rule, ceiling=upper)
        self._lower = lower
        self.at_s: dict[int, float] = {}
        self.step_s: dict[int, float] = {}
        self.extra: dict[int, int] = {}

    def fold(self, event: Pushed) -> list[Action]:
        """Fold it now, and note when it came and how long its step took."""
        rank = event.push.worker
        self.at_s[rank] += event.since_s
        self.step_s[rank] = event.evidence.get("duration_s", event.since_s)
        return super().fold(event)

    def joined(self, rank: int, clock: int) -> list[Action]:
        """Count its time from the latest push of the others."""
        self.at_s[rank] = max(self.at_s.values(), default=0.0)
        return super().joined(rank, clock)

    def left(self, rank: int) -> list[Action]:
        """Forget its times."""
        for known in (self.at_s, self.step_s, self.extra):
            known.pop(rank, None)
        return super().left(rank)

    def bound(self, rank: int) -> int:
        """Return ``lower``, or the bound chosen when the worker went past it."""
        lead = self.progress[rank] - self.slowest
        if lead <= self._lower:
            self.extra.pop(rank, None)
            return self._lower
        if rank not in self.extra:
            self.extra[rank] = self._best_extra(rank)
        return self._lower + self.extra[rank]

    def _best_extra(self, rank: int) -> int:
        slow = [q for q, progress in self.progress.items() if progress == self.slowest]
        pace = max((self.step_s.get(q, 0.0) for q in slow), default=0.0)
        if pace <= 0.0 or rank not in self.step_s:
            return 0  # the slowest has not pushed yet: nothing to predict from
        due_s = max(self.at_s[q] for q in slow)

        def wait(extra: int) -> float:
            ready = self.at_s[rank] + extra * self.step_s[rank]
            pushes = max(1, math.ceil((ready - due_s) / pace))
            return due_s + pushes * pace - ready

        return min(range(self._ceiling - self._lower + 1), key=wait)


@protocols.register("dssp")
@dataclass(frozen=True)
class DSSP(Protocol):
    """SSP whose bound lies in [lower, upper], chosen where a fast worker's predicted wait is least.

    Waits for: the slowest worker, when more than ``lower`` to ``upper`` steps ahead of it. Messages
    per step and worker: 2. Bytes per step and worker: 2 P. A death: its clock is forgotten. Exact:
    one worker; lower = upper equals ssp.

    Args:
        lower: the lead that is always allowed, in steps, >= 0.
        upper: the lead that is never passed, >= lower.
        rescale: a staleness rule of ``freewheel.aggregation``: its name, or a table with settings.

    Example:
        >>> from freewheel.protocols import protocols
        >>> protocols.create("dssp", {"lower": 2, "upper": 6}).settings["upper"]
        6

    References:
        Zhao et al., "Dynamic Stale Synchronous Parallel Distributed Training for Deep Learning",
        2019.
    """

    name: ClassVar[str] = "dssp"
    layout: ClassVar[Layout] = "server"
    card: ClassVar[Card] = Card(
        waits_for="the slowest worker, when more than `lower` to `upper` steps ahead of it",
        messages="2",
        bytes="2 P",
        on_death="its clock is forgotten; whoever waited for it goes on",
        exact="one worker equals plain PyTorch bit for bit; lower = upper equals ssp",
        reference='Zhao et al., "Dynamic Stale Synchronous Parallel Distributed Training for Deep '
        'Learning", 2019',
        paragraph="SSP without a bound to tune: when a worker is `lower` steps ahead, the server "
        "predicts from recent pushes after how many more steps, up to `upper` in all, it would "
        "wait least for the slowest worker, and lets it run that many.",
    )

    lower: int = 1
    upper: int = 8
    rescale: RuleSpec = "none"

    def __post_init__(self) -> None:
        at_least("lower bound", self.lower, 0, 'use protocol = "asp" for no bound')
        at_least("upper bound", self.upper, self.lower, "it may not lie below the lower bound")
        rule_of(self.rescale)

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes a gradient at every step."""
        return Replica()

    def central(self) -> Predicting:
        """Return a machine that chooses each bound from push intervals."""
        return Predicting(rule_of(self.rescale), self.lower, self.upper)
