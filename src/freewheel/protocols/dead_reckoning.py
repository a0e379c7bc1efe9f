"""Dead reckoning: both ends predict, and who leaves the prediction speaks up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from freewheel.aggregation import rule_of
from freewheel.aggregation.staleness import Rule, RuleSpec
from freewheel.monitors.deviation import Deviation
from freewheel.monitors.dual_prediction import read_spec
from freewheel.predictors import predictors
from freewheel.protocols.asp import OneByOne
from freewheel.protocols.base import Action, Event, Protocol, StepDone
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import (
    Grant,
    Kind,
    Layout,
    Pushed,
    SendPull,
    SendPush,
    Start,
)
from freewheel.protocols.watch import Predicted, PredictorSpec


class Reckoner(Replica):
    """Pushes when the worker has left what both ends predict of it; else asks when it has to.

    Args:
        tolerance: of the deviation, relative to the norm of the parameters; 0 pushes every step.
        moves: the prediction is not that nothing changes, so that asking folds what is predicted.
    """

    def __init__(self, tolerance: float, moves: bool) -> None:
        super().__init__("delta")
        self._monitor = Deviation(tolerance, "state") if tolerance else None
        self._moves = moves

    def on(self, event: Event, /) -> Sequence[Action]:
        """Start the next step, push and pull, or only pull."""
        if not isinstance(event, StepDone):
            return super().on(event)
        self.clock = event.clock
        if self._in_doubt(event):
            self.pushed = self.clock
            return SendPush("delta"), SendPull()
        if self.clock <= self.granted:
            return (Start(self.clock),)
        if not self._moves:
            return (SendPull(),)
        self.pushed = self.clock
        return SendPush("predicted"), SendPull()

    def _in_doubt(self, event: StepDone) -> bool:
        # a step that was refused here is told, so that it is counted and its worker named
        if self._monitor is None or event.evidence.get("non_finite", 0.0) > 0:
            return True
        return self._monitor.observe(event.clock, event.evidence).verdict != "trust"


class Reckoned(OneByOne):
    """Folds each push as it arrives, and lets workers run for some steps without a word.

    Args:
        rule: the staleness rule of the folds. Its N is the most workers that there were at a time:
            what is left to push when others have ended may not count more for it.
        every: steps that one grant covers.
    """

    def __init__(self, rule: Rule, every: int) -> None:
        super().__init__(rule)
        self._every = every
        self.most = 0

    def joined(self, rank: int, clock: int) -> list[Action]:
        """Count it, and answer at once."""
        self.most = max(self.most, len(self.members))
        return self.asked(rank, clock)

    def asked(self, rank: int, clock: int) -> list[Action]:
        """Answer at once."""
        return [Grant(rank, clock + self._every - 1)]

    def fold(self, event: Pushed) -> list[Action]:
        """Fold it now."""
        factor = self._rule.factor(self.staleness(event.push), self.most)
        return self.apply([event.push], [factor])


@protocols.register("dead_reckoning")
@dataclass(frozen=True)
class DeadReckoning(Protocol):
    """Push when the worker, and answer with parameters when the server, left what is predicted.

    Worker and server run the same predictor over what has crossed between them. A worker trains
    with its own optimizer and pushes its change only when that is further than ``tolerance`` (times
    the norm of its parameters) from the prediction; every ``every`` steps at the latest it asks,
    and is sent parameters only where the server's have left what the worker predicts of them.

    Waits for: nobody. With a share r of steps that push, q that are sent parameters, and at most
    r + 1 / every that ask: 2 (r + 1 / every) messages and P (r + q) bytes per step and worker. A
    death: stops nobody. Exact: ``tolerance = 0``.

    Args:
        tolerance: of what a worker pushes, relative, >= 0.
        pull_tolerance: of what it is sent; None: as ``tolerance``.
        every: steps without a word at most, >= 1.
        predictor: a predictor by name, or a table of its name and settings.
        rescale: a staleness rule of ``freewheel.aggregation``; ``"lr_over_n"`` makes it an average.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.base import StepDone
        >>> from freewheel.protocols.replicas import Granted
        >>> local = protocols.create("dead_reckoning", {"tolerance": 0.1, "every": 9}).local(0)
        >>> _ = local.on(Granted(clock=8, version=0))
        >>> local.on(StepDone(1, {"error_norm": 0.2, "state_norm": 5.0}, 0.1))
        (Start(clock=1),)
        >>> local.on(StepDone(2, {"error_norm": 0.6, "state_norm": 5.0}, 0.1))
        (SendPush(kind='delta'), SendPull(mix=1.0))

    References:
        Jain, Chang, Wang, "Adaptive stream resource management using Kalman filters" (the dual
        prediction scheme), 2004.
        Cormode, Garofalakis, "Approximate continuous querying over distributed streams", 2008.
        Giatrakos et al., "Distributed Geometric Query Monitoring Using Prediction Models", 2014.
    """

    name: ClassVar[str] = "dead_reckoning"
    layout: ClassVar[Layout] = "server"
    pushes: ClassVar[Kind] = "delta"
    card: ClassVar[Card] = Card(
        waits_for="nobody",
        messages="2 (r + 1 / every) at most, with a share r of steps that push",
        bytes="P (r + q), with a share q of steps that are sent parameters",
        on_death="nothing: the others do not notice; what was predicted of it ends with it",
        exact="tolerance = 0 with rescale = none equals fedbuff(k = 1, rescale = none) bit for "
        "bit; one worker does plain training, up to the rounding of pulled + (local - pulled)",
        reference='Cormode, Garofalakis, "Approximate continuous querying over distributed '
        'streams", 2008',
        paragraph="Each end predicts the other by the same rule from what has crossed, so that "
        "nothing need be sent while both stay near the prediction. A worker trains with its own "
        "optimizer, and pushes its change when it has left the prediction by more than the "
        "tolerance; the server sends parameters when its own have. With predictor = static each "
        "end takes the other to stand still; with velocity a steady drift costs no tensor. Steps "
        "that matter are sent at once, small ones wait: traffic falls as training settles.",
    )

    tolerance: float = 0.01
    pull_tolerance: float | None = None
    every: int = 8
    predictor: PredictorSpec = "static"
    rescale: RuleSpec = "lr_over_n"

    def __post_init__(self) -> None:
        for what, value in (
            ("tolerance", self.tolerance),
            (
                "pull_tolerance",
                self.tolerance if self.pull_tolerance is None else self.pull_tolerance,
            ),
        ):
            if not value >= 0:
                raise ValueError(f"{what} must be >= 0, got {value}; 0 sends every time")
        at_least("every", self.every, 1, "1 asks after every step")
        name, settings = read_spec(self.predictor)
        predictors.create(name, settings)
        rule_of(self.rescale)

    @property
    def watch(self) -> Predicted | None:
        """Return what both ends predict; nothing where everything is sent every time."""
        pull = self.tolerance if self.pull_tolerance is None else self.pull_tolerance
        return Predicted(self.predictor, pull) if self.tolerance or pull else None

    def local(self, rank: int) -> Reckoner:
        """Return a machine that pushes when it is in doubt."""
        return Reckoner(self.tolerance, read_spec(self.predictor)[0] != "static")

    def central(self) -> Reckoned:
        """Return a machine that folds each push as it arrives."""
        return Reckoned(rule_of(self.rescale), self.every)
