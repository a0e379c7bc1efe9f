"""How far each worker is, and who may run ahead: what bounded staleness is made of."""

from __future__ import annotations

from freewheel.aggregation.staleness import Rule
from freewheel.protocols.asp import OneByOne
from freewheel.protocols.base import Action
from freewheel.protocols.replicas import Grant


class Paced(OneByOne):
    """Folds each push at once, but answers only workers that are not too far ahead of the slowest.

    Progress is a worker's clock, shifted so that one who joins late starts level with the slowest.

    Args:
        rule: the staleness rule of the folds.
        ceiling: the largest lead over the slowest worker with which anyone may start a step.
    """

    def __init__(self, rule: Rule, ceiling: int) -> None:
        super().__init__(rule)
        self._ceiling = ceiling
        self.offset: dict[int, int] = {}
        self.progress: dict[int, int] = {}
        # How many members are at each progress: the slowest moves on without a search over all.
        self.counts: dict[int, int] = {}
        self.slowest = 0
        self.waiting: dict[int, list[list[int]]] = {}

    def joined(self, rank: int, clock: int) -> list[Action]:
        """Start the newcomer level with the slowest."""
        if not self.progress:
            self.slowest = clock
        self.offset[rank] = self.slowest - clock
        self._move(rank, self.slowest)
        return [Grant(rank, clock)]

    def asked(self, rank: int, clock: int) -> list[Action]:
        """Answer it if it is close enough to the slowest, and all whom its progress releases."""
        progress, before = clock + self.offset[rank], self.slowest
        self._move(rank, progress)
        if progress - self.slowest <= self.bound(rank):
            grants: list[Action] = [Grant(rank, clock)]
        else:
            grants = []
            self.waiting.setdefault(progress, []).append([rank, clock])
        return [*grants, *(self._release() if self.slowest > before else [])]

    def left(self, rank: int) -> list[Action]:
        """Wait for it no longer."""
        self._move(rank, None)
        del self.offset[rank]
        for progress, waiting in list(self.waiting.items()):
            self._keep(progress, [entry for entry in waiting if entry[0] != rank])
        return self._release()

    def bound(self, rank: int) -> int:
        """Return the lead with which this worker may still start a step."""
        return self._ceiling

    def _move(self, rank: int, progress: int | None) -> None:
        before = self.progress.pop(rank, None)
        if before is not None:
            self.counts[before] -= 1
            if not self.counts[before]:
                del self.counts[before]
        if progress is not None:
            self.progress[rank] = progress
            self.counts[progress] = self.counts.get(progress, 0) + 1
        while self.counts and self.slowest not in self.counts:
            self.slowest += 1

    def _release(self) -> list[Action]:
        grants: list[Action] = []
        for progress in sorted(self.waiting):
            lead, kept = progress - self.slowest, []
            if lead > self._ceiling:
                break
            for rank, clock in self.waiting[progress]:
                if lead <= self.bound(rank):
                    grants.append(Grant(rank, clock))
                else:
                    kept.append([rank, clock])
            self._keep(progress, kept)
        return grants

    def _keep(self, progress: int, waiting: list[list[int]]) -> None:
        if waiting:
            self.waiting[progress] = waiting
        else:
            del self.waiting[progress]
