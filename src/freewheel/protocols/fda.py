"""Federated dynamic averaging: average the models when they have drifted apart, not before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from freewheel.monitors.model_variance import Share, model_variance
from freewheel.protocols.base import Action, Event, Protocol, StepDone
from freewheel.protocols.bsp import Round
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import (
    Grant,
    Granted,
    Kind,
    Layout,
    Reported,
    SendPull,
    SendPush,
    SendReport,
)
from freewheel.protocols.watch import Estimate, Variance


class Reporting(Replica):
    """Reports where a replica would push; a grant for no further step makes it push and pull."""

    def on(self, event: Event, /) -> Sequence[Action]:
        """Start the next step, report, or push and pull."""
        if isinstance(event, StepDone) and event.clock > self.granted:
            self.clock = event.clock
            return (SendReport(),)
        if isinstance(event, Granted) and event.clock < self.clock:
            self.pushed = self.clock
            return SendPush(self._kind), SendPull(self._mix)
        return super().on(event)


class VarianceRound(Round):
    """Lets workers go on until the variance of their models passes a bound, then averages.

    Args:
        theta: the bound.
        every: local steps that one grant covers.
        rows: of the sketches in the reports; 0 for the linear estimate.
    """

    def __init__(self, theta: float, every: int, rows: int) -> None:
        super().__init__(steps=every)
        self._theta, self._rows = theta, rows
        self.reports: dict[int, list[Any]] = {}
        self.averaging = False

    def reported(self, event: Reported) -> list[Action]:
        """Keep it until all have reported; while an average is under way, call for a push."""
        if self.averaging:
            return [Grant(event.rank, event.clock - 1)]
        told = [event.clock, event.num_samples, dict(event.evidence), list(event.sketch)]
        self.reports[event.rank] = told
        return self._judge()

    def asked(self, rank: int, clock: int) -> list[Action]:
        """Let it wait for the average; one that has ended is not waited for any more."""
        return [*super().asked(rank, clock), *self._judge()]

    def left(self, rank: int) -> list[Action]:
        """Stop waiting for it."""
        self.reports.pop(rank, None)
        return [*super().left(rank), *self._judge()]

    def close(self) -> list[Action]:
        """End the average if all have pushed."""
        if len(self.waiting) >= len(self.members):
            self.averaging = False
        return super().close()

    def _judge(self) -> list[Action]:
        if not self.reports or self.members - self.reports.keys() - self.waiting.keys():
            return []
        shares = [Share(float(n), *told) for _, n, *told in self.reports.values()]
        # a variance that is not known is not small
        self.averaging = not model_variance(shares, self._rows) <= self._theta
        further = -1 if self.averaging else self._steps - 1
        grants: list[Action] = [
            Grant(rank, told[0] + further) for rank, told in sorted(self.reports.items())
        ]
        self.reports = {}
        return grants


@protocols.register("fda")
@dataclass(frozen=True)
class FDA(Protocol):
    """Average models, weighted by samples, when their variance passes ``theta``.

    Every ``every`` local steps each worker reports the squared norm of its change since the last
    average, and a number or a sketch from which the norm of the mean change is estimated; from
    these the server knows how far the models are apart, before any of them travels.

    Waits for: all workers, every ``every`` steps. With a share r of steps that end in an average:
    2 / every + 2 r messages and 2 P r bytes per step and worker, beside the reports' (2 +
    rows columns) numbers. A death: the round goes on without it. Exact: ``theta = 0`` averages
    every ``every`` steps, without reports.

    Args:
        theta: largest variance (mean squared distance from the mean model) without an average,
            >= 0, in squared units of parameters.
        estimate: ``"linear"`` (two numbers a report, never too late) or ``"sketch"`` (closer).
        every: local steps between two reports, >= 1.
        rows: of the sketch, an odd number >= 1.
        columns: of the sketch, >= 1.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.replicas import Joined, Reported
        >>> central = protocols.create("fda", {"theta": 1.0}).central()
        >>> _ = central.on(Joined(0)), central.on(Joined(1))
        >>> central.on(Reported(0, 1, 8, {"sq_norm": 0.5}))
        []
        >>> central.on(Reported(1, 1, 8, {"sq_norm": 0.7}))  # 0.6 at most: go on
        [Grant(rank=0, clock=1), Grant(rank=1, clock=1)]

    References:
        Theologitis, Frangias, Anestis, Samoladas, Deligiannakis, "Communication-Efficient
        Distributed Deep Learning via Federated Dynamic Averaging", 2025.
        Samoladas, Garofalakis, "Functional Geometric Monitoring for Distributed Streams", 2019.
    """

    name: ClassVar[str] = "fda"
    layout: ClassVar[Layout] = "server"
    pushes: ClassVar[Kind] = "delta"
    card: ClassVar[Card] = Card(
        waits_for="all workers, every `every` steps, for a report",
        messages="2 / every + 2 r, with a share r of steps that end in an average",
        bytes="2 P r, and 8 / every for reports (a sketch: 4 (2 + rows columns) / every)",
        on_death="the round goes on without it; a change of its that arrived is averaged in",
        exact="theta = 0 averages every `every` steps without reports: local_sgd(k = every) but "
        "for the order of rounding",
        reference='Theologitis et al., "Communication-Efficient Distributed Deep Learning via '
        'Federated Dynamic Averaging", 2025',
        paragraph="Each worker trains alone with its own optimizer and reports how far it has come "
        "since the last average: two numbers, or a sketch of its change. From the reports of all "
        "the server estimates the variance of the models, and calls for an average only when it "
        "passes theta. Early in training and at high learning rates that is often, later rarely: "
        "data decides, where local_sgd has a fixed number of steps. A larger theta sends less.",
    )

    theta: float = 0.1
    estimate: Estimate = "linear"
    every: int = 1
    rows: int = 5
    columns: int = 50

    def __post_init__(self) -> None:
        if not self.theta >= 0:
            raise ValueError(f"theta must be >= 0, got {self.theta}; 0 averages at every report")
        if self.estimate not in ("linear", "sketch"):
            raise ValueError(f"estimate must be 'linear' or 'sketch', got {self.estimate!r}")
        at_least("every", self.every, 1, "1 reports after every step")
        at_least("rows of the sketch", self.rows, 1)
        at_least("columns of the sketch", self.columns, 1)
        if self.rows % 2 == 0:
            raise ValueError(f"rows of the sketch must be odd, got {self.rows}: a median is taken")

    @property
    def watch(self) -> Variance | None:
        """Return what a report holds; nothing is measured where every step is averaged."""
        if not self.theta:
            return None
        sketched = self.estimate == "sketch"
        return Variance(*((self.rows, self.columns) if sketched else (0, 0)))

    def local(self, rank: int) -> Replica:
        """Return a machine that reports, and pushes its change when it is called to."""
        return Reporting(self.pushes) if self.theta else Replica(self.pushes)

    def central(self) -> Round:
        """Return a machine that averages when the reports say so."""
        if not self.theta:
            return Round(steps=self.every)
        sketched = self.estimate == "sketch"
        return VarianceRound(self.theta, self.every, self.rows if sketched else 0)
