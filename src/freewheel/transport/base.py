"""The interface that every carrier of messages keeps, and the one place where traffic is counted.

A ``Link`` is one process's end of the run's network. It is named by role and rank (``"stage 1"``),
knows its peers by name, and moves ``Message`` objects. It is used from one thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

COORDINATOR = "coordinator"

#: Phases of a run whose traffic is counted apart. Only ``TRAIN`` stands in headline figures.
TRAIN, EVALUATE, TELEMETRY, CHECKPOINT = "train", "evaluate", "telemetry", "checkpoint"


@dataclass(frozen=True, slots=True)
class Message:
    """One message between two processes.

    ``kind``, ``tree`` and the dtypes and shapes of ``tensors`` form its schema, which a carrier may
    agree with the receiver once and then leave out. The rest differs from message to message.

    Args:
        kind: what it is, in one word: ``"forward"``, ``"push"``, ``"stop"``.
        tensors: of any dtype and shape; the caller must not write to them after sending.
        tree: how ``tensors`` sit in the value that was sent (plain lists, dicts, strings, numbers,
            None), as ``transport.tree.flatten`` gives it; None where the tensors are just a list.
        clock: local steps finished by the sender, at most 2**32 - 1.
        index: which of several, e.g. the micro-batch, at most 65535.
        num_samples: samples that the tensors stand for, at most 2**32 - 1.
        meta: anything else, msgpack-able and small; left out of the wire when empty.
        sender: filled in by the receiving link.
        deliver_at_ns: set by a shaped link only, and not counted as bytes.

    Example:
        >>> import torch
        >>> from freewheel.transport.base import Message
        >>> Message("forward", (torch.zeros(2, 3),), clock=7, num_samples=2).clock
        7
    """

    kind: str
    tensors: tuple[Tensor, ...] = ()
    tree: Any = None
    clock: int = 0
    index: int = 0
    num_samples: int = 0
    meta: Mapping[str, Any] = field(default_factory=dict)
    sender: str = ""
    deliver_at_ns: int = 0


@dataclass(slots=True)
class Count:
    """Messages and bytes (payload and headers) one way."""

    messages: int = 0
    num_bytes: int = 0

    def add(self, num_bytes: int) -> None:
        """Count one message of this many bytes."""
        self.messages += 1
        self.num_bytes += num_bytes


class Traffic:
    """What one link has sent and received, by phase of the run and by peer.

    Example:
        >>> from freewheel.transport.base import Traffic
        >>> traffic = Traffic()
        >>> traffic.sent("stage 1", 100)
        >>> with traffic.counting("evaluate"):
        ...     traffic.sent("stage 1", 5)
        >>> traffic.total_sent("train").num_bytes, traffic.total_sent("evaluate").num_bytes
        (100, 5)
    """

    def __init__(self) -> None:
        self.phase = TRAIN
        self.out: dict[tuple[str, str], Count] = {}
        self.into: dict[tuple[str, str], Count] = {}

    @contextmanager
    def counting(self, phase: str) -> Iterator[None]:
        """Count what moves inside the ``with`` block under ``phase``."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def sent(self, peer: str, num_bytes: int) -> None:
        """Count one message to ``peer``, under the current phase."""
        self.out.setdefault((self.phase, peer), Count()).add(num_bytes)

    def received(self, peer: str, num_bytes: int) -> None:
        """Count one message from ``peer``, under the current phase."""
        self.into.setdefault((self.phase, peer), Count()).add(num_bytes)

    def total_sent(self, phase: str = TRAIN) -> Count:
        """Return messages and bytes sent to all peers in ``phase``."""
        return self._total(self.out, phase)

    def total_received(self, phase: str = TRAIN) -> Count:
        """Return messages and bytes received from all peers in ``phase``."""
        return self._total(self.into, phase)

    @staticmethod
    def _total(counts: Mapping[tuple[str, str], Count], phase: str) -> Count:
        of_phase = [count for (its_phase, _), count in counts.items() if its_phase == phase]
        return Count(sum(c.messages for c in of_phase), sum(c.num_bytes for c in of_phase))


class Interrupted(Exception):
    """A message arrived that ends any wait, such as ``"stop"`` from the coordinator."""

    def __init__(self, message: Message) -> None:
        super().__init__(message.kind)
        self.message = message


class Link(Protocol):
    """One process's end of the run's network.

    Errors: ``LinkTimeoutError`` when a deadline passes, naming this link, the peer and the kind
    that was waited for; ``WireError`` is counted and the bytes dropped, never raised to a waiter;
    ``LinkError`` for an unknown peer or a closed link.
    """

    name: str
    traffic: Traffic

    @property
    def refused(self) -> int:
        """Transfers that were not a message of this run, or broke a limit; each was dropped."""
        ...

    @property
    def address(self) -> str:
        """Where others reach this link, for ``connect`` on their side."""
        ...

    def connect(self, peers: Mapping[str, str]) -> None:
        """Make peers known: name to address. Known ones may be given again, with a new address."""
        ...

    def interrupt_on(self, *kinds: str) -> None:
        """Let a message of these kinds raise ``Interrupted`` from any ``receive`` that waits."""
        ...

    def send(self, to: str, message: Message, *, timeout_s: float = 60.0) -> None:
        """Hand a message over; return before it has arrived.

        Messages from one link to one peer that carry tensors arrive in the order sent; so do those
        that carry none; between the two sorts there is no order (control overtakes bulk).
        Blocks while the peer's queue is full.

        Raises:
            LinkTimeoutError: the queue stayed full, or the peer out of reach, for ``timeout_s``.
            Interrupted: it blocked, and a message of a kind named to ``interrupt_on`` came.
        """
        ...

    def receive(
        self, *, kind: str | None = None, sender: str | None = None, timeout_s: float = 60.0
    ) -> Message:
        """Return the next message that fits, keeping others for later; from anyone when None.

        Raises:
            LinkTimeoutError: none came within ``timeout_s``.
            Interrupted: a message of a kind named to ``interrupt_on`` came.
        """
        ...

    def close(self, linger_s: float = 1.0) -> None:
        """Flush for at most ``linger_s``, then free sockets and memory. Safe to call twice."""
        ...
