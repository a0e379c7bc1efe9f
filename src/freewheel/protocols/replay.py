"""Replay: one exact exchange, then local steps on boundary tensors that are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from freewheel.monitors import Monitor, Verdict, criteria, monitors
from freewheel.protocols.base import Action, Event, Protocol, StepDone
from freewheel.protocols.card import Card
from freewheel.protocols.checks import at_least
from freewheel.protocols.registry import protocols
from freewheel.protocols.replicas import Layout
from freewheel.protocols.stages import Plan, Sync
from freewheel.protocols.stages import Replay as ReplayRound
from freewheel.protocols.vanilla import Silent
from freewheel.registry import Registry


@protocols.register("replay")
@dataclass(frozen=True)
class Replay(Protocol):
    """Exchange every ``every``-th batch exactly; train on kept boundary tensors in between.

    Each stage keeps what came in, what went out, and the gradient that came back, of the last
    ``window`` exchanges, and takes ``repeats`` steps on them for each exchange. An upstream stage
    weighs a kept gradient by the cosine similarity of what it would send now and what it sent
    then, and not at all below ``similarity``. With a guard, an exchange whose loss it doubts is
    taken for a drift of the data: all stages forget what they kept before it. With ``begin``, every
    batch is exchanged until that criterion fires: a network that has learnt nothing yet has no
    gradients worth keeping, and replayed ones can switch all units of a stage off for good.

    Waits for: as vanilla, every ``every`` steps. Messages per step: 2 (S - 1) M / every; bytes per
    step: 2 (S - 1) A / every. A death: as vanilla. Exact: ``every = 1, repeats = 0``.

    Args:
        every: batches from one exchange to the next, at least 1; the others are not used.
        repeats: local steps on kept tensors after each exchange; None for ``every - 1``.
        window: exchanges kept, at least 1.
        similarity: cosine below which a kept gradient is not used, in [-1, 1].
        guard: a monitor by name, or a table of its name and settings, that judges the loss of each
            exchange, such as ``loss_guard``; None: nothing is forgotten but the oldest.
        begin: a criterion by name, or a table, such as ``loss_fallen``, that says when to begin;
            None: after the first exchange.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> from freewheel.protocols import protocols
        >>> protocols.create("replay", {"every": 4}).num_repeats
        3

    References:
        Fu et al., "Towards Communication-efficient Vertical Federated Learning Training via
        Cache-enabled Local Updates" (CELU-VFL), 2022.
    """

    every: int = 4
    repeats: int | None = None
    window: int = 8
    similarity: float = 0.5
    guard: str | Mapping[str, Any] | None = None
    begin: str | Mapping[str, Any] | None = None

    name: ClassVar[str] = "replay"
    layout: ClassVar[Layout] = "pipeline"
    card: ClassVar[Card] = Card(
        waits_for="each stage for its two neighbours, at every `every`-th step",
        messages="2 (S - 1) M / every, with M micro-batches",
        bytes="2 (S - 1) A / every",
        on_death="the run stops, or the stage restarts from its checkpoint ([run] on_death)",
        exact="every = 1, repeats = 0: equal to vanilla bit for bit",
        reference='Fu et al., "Towards Communication-efficient Vertical Federated Learning '
        'Training via Cache-enabled Local Updates", 2022',
        paragraph="What is lost by exchanging less often is updates more than data. So each stage "
        "keeps the boundary tensors of its last exchanges and trains on them in between: the last "
        "stage on the inputs and labels it has, the others on the gradients that came back, as "
        "long as what they would send now is still similar to what they sent then.",
    )

    def __post_init__(self) -> None:
        at_least("every", self.every, 1)
        at_least("window", self.window, 1)
        if self.repeats is not None:
            at_least("repeats", self.repeats, 0)
        if not -1.0 <= self.similarity <= 1.0:
            raise ValueError(f"similarity is a cosine, in [-1, 1], got {self.similarity}")
        self.make_guard()
        self.make_begin()

    def make_guard(self) -> Monitor | None:
        """Return a new guard, or None."""
        return _made(monitors, self.guard, "loss_guard")

    def make_begin(self) -> Monitor | None:
        """Return a new criterion that says when to begin, or None."""
        return _made(criteria, self.begin, "loss_fallen")

    @property
    def num_repeats(self) -> int:
        """Local steps after each exchange."""
        return self.every - 1 if self.repeats is None else self.repeats

    def local(self, rank: int) -> Silent:
        """Return a machine that never proposes anything."""
        return Silent()

    def central(self) -> ReplayCentral | None:
        """Return the machine that announces the plan once; None where there is nothing to plan."""
        return ReplayCentral(self) if self.every > 1 else None


def _made(
    registry: Registry[Monitor], asked: str | Mapping[str, Any] | None, usual: str
) -> Monitor | None:
    if asked is None:
        return None
    table = {"name": asked} if isinstance(asked, str) else dict(asked)
    return registry.create(str(table.pop("name", usual)), table)


class ReplayCentral:
    """Announces, once it is time to begin, the plan that repeats from then on.

    A plan that is announced anew empties what stages have kept: that is how a drift is answered.
    """

    def __init__(self, protocol: Replay) -> None:
        self._every = protocol.every
        self._guard = protocol.make_guard()
        self._begin = protocol.make_begin()
        self._announced = False
        #: What the guard said of the last exchange, for the log.
        self.verdict: Verdict | None = None

    def on(self, event: Event, /) -> Sequence[Action]:
        """Announce the plan when it is time, and again where the data has drifted."""
        if not isinstance(event, StepDone):
            return ()
        self.verdict = None
        if self._begin is not None and not self._announced:
            self.verdict = self._begin.observe(event.clock, event.evidence)
            if self.verdict.verdict != "switch":
                return ()
        drifted = False
        if self._guard is not None:
            # "jumped" tells a guard to judge a loss; one with a horizon can once that is above 0
            judged = self._announced and getattr(self._guard, "horizon", 1) > 0
            evidence = {**event.evidence, "jumped": float(judged)}
            self.verdict = self._guard.observe(event.clock, evidence)
            drifted = judged and self.verdict.verdict == "doubt"
            if drifted:
                self._guard.reset()  # what the losses were before says nothing of the data now
        if self._announced and not drifted:
            return ()
        self._announced = True
        return (Plan(event.clock, (ReplayRound(self._every - 1), Sync())),)

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as plain JSON values."""
        return {
            "announced": self._announced,
            "guard": None if self._guard is None else self._guard.state_dict(),
            "begin": None if self._begin is None else self._begin.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue as the machine that ``state`` was taken from."""
        self._announced = bool(state["announced"])
        if self._guard is not None:
            self._guard.load_state_dict(state["guard"])
        if self._begin is not None:
            self._begin.load_state_dict(state["begin"])
