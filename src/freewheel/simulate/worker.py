"""A simulated worker: its machine, and what it is doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from freewheel.protocols.base import Machine
from freewheel.protocols.replicas import Evidence, Kind, Push, Reported


@dataclass(slots=True)
class Reply:
    """What a worker gets for a request: a grant, and parameters where it pulled."""

    clock: int
    version: int
    snapshot: Any = None


@dataclass(slots=True)
class Request:
    """A push, a pull, or both in one message; or a report."""

    push: Push | None
    payload: Any
    evidence: Evidence
    pull: bool
    clock: int
    sent_until_s: float = 0.0
    report: Reported | None = None


class Worker:
    """One worker's state.

    Args:
        rank: its number.
        machine: the protocol's local machine.
    """

    def __init__(self, rank: int, machine: Machine) -> None:
        self.rank, self.machine = rank, machine
        self.clock = 0
        self.version = 0
        self.alive = True
        self.ended = False
        self.computing = False
        self.died_at_s = float("inf")
        # The request that has no reply yet.
        self.waiting = True
        self.asked_at_s = 0.0
        self.pull_mix = 1.0
        self.wants_parameters = True
        self.reply: Reply | None = None
        # Since the last push.
        self.base = 0
        self.steps = 0
        self.samples = 0
        self.step_s = 0.0
        self.last_push_s = 0.0
        self._sums: dict[str, float] = {}
        # Totals.
        self.compute_s = 0.0
        self.wait_s = 0.0

    def begin(self) -> None:
        """Begin a step."""
        self.computing = True
        if not self.steps:
            self.base = self.version

    def finish(self, num_samples: int, evidence: Evidence, seconds: float) -> None:
        """Count a step that ended."""
        self.computing = False
        self.clock += 1
        self.steps += 1
        self.samples += num_samples
        self.step_s += seconds
        self.compute_s += seconds
        for name, value in evidence.items():
            # Counts of bad values add up; everything else is a mean over samples.
            weight = 1 if name == "non_finite" else num_samples
            self._sums[name] = self._sums.get(name, 0.0) + value * weight

    def take_push(self, kind: Kind) -> tuple[Push, Evidence]:
        """Return the push of all steps since the last one, and its evidence."""
        push = Push(self.rank, self.clock, self.base, self.samples, kind)
        total = max(1, self.samples)
        evidence = {
            name: value if name == "non_finite" else value / total
            for name, value in self._sums.items()
        }
        evidence["duration_s"] = self.step_s
        self.steps, self.samples, self.step_s, self._sums = 0, 0, 0.0, {}
        return push, evidence
