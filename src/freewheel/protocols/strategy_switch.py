"""Strategy-Switch: one protocol until a criterion says that the model has settled, then another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from freewheel.monitors import Monitor, criteria
from freewheel.protocols.at_switch import Changes, ChangeSpec
from freewheel.protocols.base import Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.registry import protocols
from freewheel.protocols.replica import Replica
from freewheel.protocols.replicas import Layout
from freewheel.protocols.switching import Switching

#: A name, or a table of a name and settings.
Spec: TypeAlias = str | Mapping[str, Any]


@protocols.register("strategy_switch")
@dataclass(frozen=True)
class StrategySwitch(Protocol):
    """All-reduce first, an asynchronous parameter server once ``criterion`` fires; maybe back.

    Waits for: as the protocol in force. Messages and bytes per step: as the protocol in force, and
    once 2 P (parameters, momentum) for the hand-over. A death: as in the protocol in force; in the
    hand-over the run ends, with a checkpoint taken just before. Exact: where both protocols are.

    Args:
        first: protocol to begin with: its name, or a table of its name and settings.
        then: the one to go over to.
        criterion: when: a name in ``freewheel.monitors.criteria``, or a table.
        back: when to return to ``first``; None stays.
        at_switch: what happens to learning rate, momentum and batch, see
            ``freewheel.protocols.at_switch``; undone on the way back.

    Example:
        >>> from freewheel.protocols import protocols
        >>> from freewheel.protocols.replicas import Joined, Reduced
        >>> rule = {"name": "maximum", "clock": 2}
        >>> central = protocols.create("strategy_switch", {"criterion": rule}).central()
        >>> _ = central.on(Joined(0)), central.on(Joined(1)), central.on(Reduced(1, {"loss": 1.0}))
        >>> central.on(Reduced(2, {"loss": 0.9}))[0], central.switched_at
        (SwitchTopology(to='server'), 2)

    References:
        Provatas, Chalas, Konstantinou, Koziris, "Strategy-Switch: from all-reduce to parameter
        server for faster efficient training", 2025.
    """

    name: ClassVar[str] = "strategy_switch"
    layout: ClassVar[Layout] = "replicas"
    card: ClassVar[Card] = Card(
        waits_for="whom the protocol in force waits for: all workers at first, then nobody",
        messages="2 (N - 1) at first, then 2",
        bytes="2 P (N - 1) / N at first, then 2 P; the hand-over itself P and the optimizer's "
        "state, once",
        on_death="as in the protocol in force; in the hand-over the run ends, and goes on from the "
        "checkpoint that was taken just before it",
        exact="where both protocols are: all_reduce then bsp equals one process throughout",
        reference='Provatas, Chalas, Konstantinou, Koziris, "Strategy-Switch: from all-reduce to '
        'parameter server for faster efficient training", 2025',
        paragraph="Begins with all-reduce, while the model changes fast and stale gradients do "
        "harm, and goes over to a parameter server without barriers once a criterion fires, in "
        "the same processes, with parameters, optimizer state and schedule handed over. With "
        "stragglers it has most of the accuracy of the first and most of the speed of the second; "
        "with equal workers there is nothing to win. A criterion may never fire: the summary "
        "says so.",
    )

    first: Spec = "all_reduce"
    then: Spec = field(default_factory=lambda: {"name": "asp", "rescale": "lr_over_n"})
    criterion: Spec = "relative_change"
    back: Spec | None = None
    at_switch: ChangeSpec | Sequence[ChangeSpec] = ()

    def __post_init__(self) -> None:
        for index, key in ((0, "first"), (1, "then")):
            _check(key, self.side(index))
        if self.side(0).layout == self.side(1).layout == "replicas":
            raise ValueError(
                "first and then are both collectives, and there is nothing to switch between; "
                'give then a protocol for a server, e.g. then = "asp"'
            )
        for index in (0, 1):
            self.leave(index)
        self.changes()
        # the class says how it starts by default; this value may start otherwise
        object.__setattr__(self, "layout", self.side(0).layout)

    def side(self, index: int) -> Protocol:
        """Return the first protocol (0) or the other one (1)."""
        return protocols.create(*_split("protocol", (self.first, self.then)[index]))

    def leave(self, index: int) -> Monitor | None:
        """Return a new criterion for leaving a side, or None where it is never left."""
        spec = (self.criterion, self.back)[index]
        return None if spec is None else criteria.create(*_split("criterion", spec))

    def changes(self) -> Changes:
        """Return what is changed at the switch."""
        return Changes(self.at_switch)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the evidence that its criteria look at."""
        found = [monitor for monitor in (self.leave(0), self.leave(1)) if monitor is not None]
        return tuple(dict.fromkeys(name for monitor in found for name in monitor.needs))

    def local(self, rank: int) -> Replica:
        """Return a machine that pushes a gradient at every step, whatever protocol is in force."""
        return Replica()

    def central(self) -> Switching:
        """Return a machine that runs one protocol after the other."""
        return Switching(self)


def _split(kind: str, spec: Spec) -> tuple[str, dict[str, Any]]:
    if isinstance(spec, str):
        return spec, {}
    settings = dict(spec) if isinstance(spec, Mapping) else {}
    name = settings.pop("name", None)
    if not isinstance(name, str):
        raise ValueError(f"a {kind} is a name, or a table with a name and settings, got {spec!r}")
    return name, settings


def _check(key: str, protocol: Protocol) -> None:
    """Refuse a protocol whose workers do something else than push a gradient at every step.

    Raises:
        ValueError: with what to use.
    """
    ours = isinstance(protocol, StrategySwitch)
    machine = None if protocol.layout == "pipeline" or ours else protocol.local(0)
    same = type(machine) is Replica and machine.state_dict() == Replica().state_dict()
    central = protocol.central()
    if (
        not same
        or protocol.pushes != "gradient"
        or (central is None) != (protocol.layout == "replicas")
    ):
        raise ValueError(
            f"{key} = {protocol.name!r} cannot be part of a switch: its workers must push one "
            "gradient a step, since they stay the same machines throughout; use all_reduce, asp, "
            "ssp, dssp, gba, k_async, bsp, backup_workers or bounded_delay"
        )
