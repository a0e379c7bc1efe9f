"""Coast: some real steps, then a jump by predicted parameters, judged by the next real loss."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from freewheel.monitors import Monitor, Verdict, monitors
from freewheel.protocols.base import Action, Event, Protocol, StepDone
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.registry import protocols
from freewheel.protocols.replicas import Layout
from freewheel.protocols.stages import (
    Coast as CoastRound,
)
from freewheel.protocols.stages import Plan, Propose, Proposed, Rollback, Sync
from freewheel.protocols.state import PlainState


@protocols.register("coast")
@dataclass(frozen=True)
class Coast(Protocol):
    """Take ``real`` exact steps, then let every stage move on by prediction for some more.

    Nothing crosses while coasting. The first real step after a jump tells whether it stands: where
    the guard doubts its loss, all stages go back to their parameters before the jump, and the next
    jump is shorter; where jumps stand they grow. What a stage proposes (``"horizon:8"``, from its
    own backtest) bounds the next jump.

    Waits for: as vanilla, in real steps. With a share r of real steps: 2 (S - 1) M r messages and
    2 (S - 1) A r bytes per step. A death: as vanilla. Exact: ``horizon = 0``.

    Args:
        real: exact steps between two jumps, at least 1.
        horizon: steps of the first jump, or of every jump without a guard; 0 for none.
        guard: a monitor by name, or a table of its name and settings, that judges jumps by their
            next loss, and where it has a ``horizon``, sets that of the next jump
            (``loss_guard``, by default with the losses of the last quarter of a round); None:
            every jump stands.
        horizons: a schedule, ``[[step, horizon], ...]``: from that step on no jump is longer than
            this, and without a guard each is as long; ``horizon`` holds before the first of them.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.base import StepDone
        >>> central = protocols.create("coast", {"real": 2, "horizon": 5}).central()
        >>> central.on(StepDone(1, {"loss": 1.0}, 0.0))
        ()
        >>> central.on(StepDone(2, {"loss": 1.0}, 0.0))[0].rounds
        (Coast(steps=5), Sync(steps=2, codec=None))

    References:
        Dogra and Redman, "Optimizing Neural Networks via Koopman Operator Theory", 2020;
        Giatrakos et al., "Distributed Geometric Query Monitoring Using Prediction Models", 2014
        (predict on both sides, speak up when the prediction fails).
    """

    real: int = 40
    horizon: int = 40
    guard: str | Mapping[str, Any] | None = None
    horizons: Sequence[Sequence[int]] = ()

    name: ClassVar[str] = "coast"
    layout: ClassVar[Layout] = "pipeline"
    card: ClassVar[Card] = Card(
        waits_for="each stage for its two neighbours, in real steps; nobody while coasting",
        messages="2 (S - 1) M r, with M micro-batches and a share r of real steps",
        bytes="2 (S - 1) A r",
        on_death="the run stops, or the stage restarts from its checkpoint ([run] on_death)",
        exact="horizon = 0: equal to vanilla bit for bit",
        reference='Dogra and Redman, "Optimizing Neural Networks via Koopman Operator Theory", '
        '2020; Giatrakos et al., "Distributed Geometric Query Monitoring Using Prediction '
        'Models", 2014',
        paragraph="After a number of real steps every stage predicts its own parameters some steps "
        "ahead from its own history, without gradients and without messages, and training goes on "
        "from there. A guard compares the next real loss with those before and undoes a jump that "
        "made it worse. It pays where the path of the parameters is smooth (small or constant "
        "learning rates, streams); compare it with its static twin, which waits in place of "
        "jumping, before you believe in it.",
    )

    def __post_init__(self) -> None:
        at_least("real", self.real, 1, "a jump needs real steps to predict from")
        at_least("horizon", self.horizon, 0, "use 0 for no prediction")
        self._check_schedule()
        if self.guard is not None:
            self.make_guard()

    def _check_schedule(self) -> None:
        before = -1
        pair: Any
        for pair in self.horizons:
            if not isinstance(pair, list | tuple) or len(pair) != 2:
                raise ValueError(
                    f"horizons must be pairs [step, horizon], got {pair!r}; for example "
                    f"horizons = [[400, 20], [800, 0]]"
                )
            at_least("a step of horizons", pair[0], before + 1, "give them in rising order")
            at_least("a horizon of horizons", pair[1], 0, "use 0 for no prediction")
            before = pair[0]

    @property
    def jumps(self) -> bool:
        """Whether there can ever be a jump."""
        return self.horizon > 0 or any(horizon > 0 for _, horizon in self.horizons)

    def scheduled_at(self, clock: int) -> int | None:
        """Return the longest jump that may begin at ``clock``; None where nothing bounds it."""
        begun = [horizon for step, horizon in self.horizons if step <= clock]
        if begun:
            return begun[-1]
        return None if self.horizon else 0

    def make_guard(self) -> Monitor | None:
        """Return a new guard, or None."""
        if self.guard is None:
            return None
        table: dict[str, Any] = (
            {"name": self.guard} if isinstance(self.guard, str) else dict(self.guard)
        )
        name = str(table.pop("name", "loss_guard"))
        known = inspect.signature(monitors.get(name)).parameters
        first = self.horizon or max((horizon for _, horizon in self.horizons), default=0)
        if first and "horizon" in known:
            first = table.setdefault("horizon", first)
            if "max_horizon" in known and isinstance(first, int):
                table.setdefault("max_horizon", max(first, known["max_horizon"].default))
        if "window" in known and "min_losses" in known:
            # losses fall: against all of a round, a jump that undoes the last of it would stand
            least = table.get("min_losses", known["min_losses"].default)
            if isinstance(least, int):
                table.setdefault("window", max(least, self.real // 4))
        return monitors.create(name, table)

    def local(self, rank: int) -> CoastLocal:
        """Return a machine that proposes what its stage's backtest trusts."""
        return CoastLocal()

    def central(self) -> CoastCentral | None:
        """Return the machine beside the last stage; None where there is never a jump."""
        return CoastCentral(self) if self.jumps else None


class CoastLocal(PlainState):
    """Tells the last stage how far this stage trusts its prediction, when that changes."""

    def __init__(self) -> None:
        self.proposed: int | None = None

    def on(self, event: Event, /) -> Sequence[Action]:
        """Propose the horizon in the evidence, where it is another than before."""
        if not isinstance(event, StepDone) or "trusted_horizon" not in event.evidence:
            return ()
        horizon = int(event.evidence["trusted_horizon"])
        if horizon == self.proposed:
            return ()
        self.proposed = horizon
        return (Propose(f"horizon:{horizon}"),)


class CoastCentral:
    """Decides, after each real step, whether a jump stood and whether the next one begins."""

    def __init__(self, protocol: Coast) -> None:
        self._real, self._horizon = protocol.real, protocol.horizon
        self._scheduled_at = protocol.scheduled_at
        self._guard = protocol.make_guard()
        self._jump_at = protocol.real
        self._jumped_from: int | None = None
        self._planned = False
        #: What the guard said of the last jump, for the log.
        self.verdict: Verdict | None = None
        self._bounds: dict[int, int] = {}

    def on(self, event: Event, /) -> Sequence[Action]:
        """Judge a step; take note of a proposal."""
        if isinstance(event, Proposed):
            word, _, number = event.what.partition(":")
            if word == "horizon":
                self._bounds[event.by_stage] = int(number)
            return ()
        if not isinstance(event, StepDone):
            return ()
        jumped_from, self._jumped_from, self.verdict = self._jumped_from, None, None
        if self._guard is not None:
            evidence = {**event.evidence, "jumped": float(jumped_from is not None)}
            verdict = self._guard.observe(event.clock, evidence)
            self.verdict = verdict if jumped_from is not None else None
            if jumped_from is not None and verdict.verdict != "trust":
                self._jump_at = event.clock + self._real
                return (Rollback(jumped_from), *self._only_real_steps(event.clock))
        if event.clock < self._jump_at:
            return ()
        horizon = self._next_horizon(event.clock)
        self._jump_at = event.clock + horizon + self._real
        if horizon == 0:
            return self._only_real_steps(event.clock)
        self._jumped_from, self._planned = event.clock, True
        return (Plan(event.clock, (CoastRound(horizon), Sync(self._real))),)

    def _only_real_steps(self, clock: int) -> tuple[Plan, ...]:
        """Put an end to the plan of the last jump, which would repeat."""
        planned, self._planned = self._planned, False
        return (Plan(clock, (Sync(),)),) if planned else ()

    def _next_horizon(self, clock: int) -> int:
        scheduled = self._scheduled_at(clock)
        longest = self._horizon if scheduled is None else scheduled
        trusted = getattr(self._guard, "horizon", None)
        if trusted is not None:
            longest = int(trusted) if scheduled is None else min(int(trusted), scheduled)
        return min([longest, *self._bounds.values()])

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as plain JSON values."""
        return {
            "jump_at": self._jump_at,
            "jumped_from": self._jumped_from,
            "planned": self._planned,
            "bounds": [[stage, bound] for stage, bound in self._bounds.items()],
            "guard": None if self._guard is None else self._guard.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue as the machine that ``state`` was taken from."""
        self._jump_at, self._jumped_from = state["jump_at"], state["jumped_from"]
        self._planned = state["planned"]
        self._bounds = dict(state["bounds"])
        if self._guard is not None:
            self._guard.load_state_dict(state["guard"])
