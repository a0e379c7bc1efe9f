"""The waist: what every synchronisation protocol is.

A protocol is a value (a name and settings) that makes two pure state machines: ``local(rank)`` runs
beside each worker or stage and sees only what is there, ``central()`` runs with the coordinator of
the servers, or with the last stage. An event in, actions out, carried out in order: no socket, no
sleep, no clock, no randomness. Time reaches a machine only as durations and deadlines inside
events, tensors only as the few numbers that monitors report.

==========  ========  ==========================================================================
replicas    local     StepDone Granted Ended Deadline
                      -> Start SendPush SendPull SendReport SetDeadline
            central   Joined Left Pushed Pulled Reported Reduced Deadline
                      -> Fold Drop Grant SwitchTopology SetDeadline
stages      local     StepDone Planned Deadline -> Propose SetDeadline
            central   StepDone Proposed Deadline -> Plan Rollback SetDeadline
==========  ========  ==========================================================================

The words of each half, with their meaning, are in ``replicas.py`` and ``stages.py``.
"""

from __future__ import annotations

import typing
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeAlias

from freewheel.protocols.card import Card
from freewheel.protocols.replicas import (
    Drop,
    Ended,
    Evidence,
    Fold,
    Grant,
    Granted,
    Joined,
    Kind,
    Layout,
    Left,
    Pulled,
    Pushed,
    Reduced,
    Reported,
    SendPull,
    SendPush,
    SendReport,
    Start,
    SwitchTopology,
)
from freewheel.protocols.stages import Plan, Planned, Propose, Proposed, Rollback
from freewheel.protocols.watch import Watch


@dataclass(frozen=True, slots=True)
class StepDone:
    """Local event: a step ended, ``clock`` are finished now; it took ``duration_s`` seconds."""

    clock: int
    evidence: Evidence
    duration_s: float


@dataclass(frozen=True, slots=True)
class Deadline:
    """Event: the deadline of that name passed."""

    name: str


@dataclass(frozen=True, slots=True)
class SetDeadline:
    """Action: send me ``Deadline(name)`` in ``after_s`` seconds; replaces one of the same name."""

    name: str
    after_s: float


LocalEvent: TypeAlias = StepDone | Granted | Ended | Planned | Deadline
LocalAction: TypeAlias = Start | SendPush | SendPull | SendReport | Propose | SetDeadline
CentralEvent: TypeAlias = (
    Joined | Left | Pushed | Pulled | Reported | Reduced | StepDone | Proposed | Deadline
)
CentralAction: TypeAlias = Fold | Drop | Grant | SwitchTopology | Plan | Rollback | SetDeadline
Event: TypeAlias = LocalEvent | CentralEvent
Action: TypeAlias = LocalAction | CentralAction


class Machine(typing.Protocol):
    """A pure state machine: the same events in give the same actions out."""

    def on(self, event: Event, /) -> Sequence[Action]:
        """Take one event in; return what to do, in order."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as plain JSON values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue as the machine that ``state`` was taken from."""
        ...


class Protocol(ABC):
    """A synchronisation protocol: a name, settings, and the two machines it makes.

    Subclasses are frozen dataclasses; their fields are the settings, a bad one is a ``ValueError``.

    Attributes:
        name: as in ``[protocol] name``.
        layout: the layout it starts in.
        pushes: what workers push; unless it is gradients, each worker has its own optimizer.
        card: its cost and behaviour, for ``freewheel protocols`` and ``freewheel explain``.
    """

    name: ClassVar[str]
    layout: ClassVar[Layout]
    pushes: ClassVar[Kind] = "gradient"
    card: ClassVar[Card]

    @property
    def watch(self) -> Watch | None:
        """Return what its machines need measured of tensors; None where nothing is."""
        return None

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings by name."""
        own: Any = self
        return {field.name: getattr(self, field.name) for field in fields(own)}

    @abstractmethod
    def local(self, rank: int) -> Machine:
        """Return the machine beside worker or stage ``rank``."""

    @abstractmethod
    def central(self) -> Machine | None:
        """Return the machine of the coordinator or last stage; None where nobody decides."""
