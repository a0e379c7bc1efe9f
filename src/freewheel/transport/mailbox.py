"""Selective receive: what has come and not been asked for yet, and a link's half that is common.

A carrier derives from ``MailboxLink`` and says how to send, and how to wait for one transfer.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NoReturn, Self

from freewheel.errors import LinkError, LinkTimeoutError, WireError, nearest
from freewheel.transport.base import Interrupted, Message, Traffic
from freewheel.transport.schema import Buffer
from freewheel.transport.wire import Decoder

_log = logging.getLogger("freewheel.transport")


class Mailbox:
    """Messages in the order they came, with the bytes each cost.

    Args:
        max_bytes: above this the mailbox is ``full``: a carrier then takes no more bulk in.

    Example:
        >>> from freewheel.transport.base import Message
        >>> from freewheel.transport.mailbox import Mailbox
        >>> box = Mailbox(max_bytes=1000)
        >>> box.put(Message("push", sender="replica 0"), 26)
        >>> box.put(Message("stop", sender="coordinator"), 26)
        >>> box.take("stop", None)[0].sender, str(box)
        ('coordinator', "1 'push' from replica 0")
    """

    def __init__(self, max_bytes: int) -> None:
        self._waiting: deque[tuple[Message, int]] = deque()
        self._max_bytes = max_bytes
        self._num_bytes = 0

    @property
    def full(self) -> bool:
        """Whether more than ``max_bytes`` are kept."""
        return self._num_bytes > self._max_bytes

    def put(self, message: Message, num_bytes: int) -> None:
        """Keep a message until somebody takes it."""
        self._waiting.append((message, num_bytes))
        self._num_bytes += num_bytes

    def take(
        self, kind: str | None, sender: str | None, but_not: frozenset[str] = frozenset()
    ) -> tuple[Message, int] | None:
        """Remove and return the first that fits and is of no kind in ``but_not``, or None."""
        for place, (message, num_bytes) in enumerate(self._waiting):
            if (kind is None or message.kind == kind) and (
                (sender is None or message.sender == sender) and message.kind not in but_not
            ):
                del self._waiting[place]
                self._num_bytes -= num_bytes
                return message, num_bytes
        return None

    def take_one_of(self, kinds: frozenset[str]) -> tuple[Message, int] | None:
        """Remove and return the first message of one of these kinds, or None."""
        for message, _ in self._waiting:
            if message.kind in kinds:
                return self.take(message.kind, message.sender)
        return None

    def clear(self) -> None:
        """Drop everything."""
        self._waiting.clear()
        self._num_bytes = 0

    def __str__(self) -> str:
        """Return how many of what kind from whom are waiting."""
        of = Counter((message.kind, message.sender) for message, _ in self._waiting)
        return ", ".join(f"{n} {kind!r} from {sender}" for (kind, sender), n in of.items())


class MailboxLink(ABC):
    """What every carrier's link does in the same way: receive by kind and sender, count, refuse.

    Args:
        name: this process by role and rank, e.g. ``"stage 1"``.
        max_waiting_bytes: of messages that came and were not asked for yet; above it no more bulk
            is taken in, so that senders feel it.
    """

    def __init__(self, name: str, max_waiting_bytes: int) -> None:
        self.name = name
        self.traffic = Traffic()
        self._num_refused = 0
        self._mailbox = Mailbox(max_waiting_bytes)
        self._interrupting: frozenset[str] = frozenset()
        self._closed = False
        self._reasons: set[str] = set()

    @abstractmethod
    def send(self, to: str, message: Message, *, timeout_s: float = 60.0) -> None:
        """Hand a message over, as ``Link.send`` says."""

    @abstractmethod
    def close(self, linger_s: float = 1.0) -> None:
        """Flush and free, as ``Link.close`` says."""

    @abstractmethod
    def _wait(self, timeout_s: float) -> None:
        """Take at least one transfer in, or return once ``timeout_s`` has passed."""

    @property
    def refused(self) -> int:
        """Transfers that were not a message of this run, or broke a limit."""
        return self._num_refused

    def interrupt_on(self, *kinds: str) -> None:
        """Let a message of these kinds raise ``Interrupted`` from any wait, as ``Link`` says."""
        self._interrupting |= frozenset(kinds)

    def receive(
        self, *, kind: str | None = None, sender: str | None = None, timeout_s: float = 60.0
    ) -> Message:
        """Return the next message that fits, as ``Link.receive`` says."""
        self._check_open()
        deadline = time.monotonic() + timeout_s
        while True:
            but_not = self._interrupting - {kind} if kind else self._interrupting
            found = self._mailbox.take(kind, sender, but_not)
            if found is not None:
                return self._deliver(*found)
            self._raise_interrupts()
            left_s = deadline - time.monotonic()
            if left_s <= 0 and timeout_s > 0:
                self._raise_nothing_came(kind, sender, timeout_s)
            self._wait(max(left_s, 0.0))
            # With no time at all, still look once at what is there already.
            timeout_s = timeout_s or 1e-9

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take_in(self, sender: str, decoder: Decoder, frames: Sequence[Buffer]) -> None:
        """Decode one transfer into the mailbox; count and drop it where it is refused."""
        try:
            decoded = decoder.decode(frames)
        except WireError as error:
            self._refuse(str(error), sender)
        else:
            if decoded is not None:
                self._mailbox.put(*decoded)

    def _refuse(self, why: str, sender: str) -> None:
        self._num_refused += 1
        if why not in self._reasons and len(self._reasons) < 16:
            self._reasons.add(why)
            _log.warning("%s refused a transfer from %s: %s", self.name, sender, why)

    def _deliver(self, message: Message, num_bytes: int) -> Message:
        self.traffic.received(message.sender, num_bytes)
        return message

    def _raise_interrupts(self) -> None:
        if self._interrupting:
            found = self._mailbox.take_one_of(self._interrupting)
            if found is not None:
                raise Interrupted(self._deliver(*found))

    def _raise_nothing_came(
        self, kind: str | None, sender: str | None, timeout_s: float
    ) -> NoReturn:
        what = repr(kind) if kind else "message"
        kept = f"; waiting unread: {self._mailbox}" if str(self._mailbox) else ""
        full = ", which fills its mailbox; receive these first" if self._mailbox.full else ""
        raise LinkTimeoutError(
            f"{self.name} waited {timeout_s:.3g} s for {what} from {sender or 'anyone'} and none "
            f"came{kept}{full}; see whether {sender or 'the sender'} is alive, or raise the timeout"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise LinkError(f"the link of {self.name} is closed; it can neither send nor receive")

    def _raise_unknown(self, to: str, known: Mapping[str, object]) -> NoReturn:
        raise LinkError(
            f"{self.name} knows no peer {to!r}{nearest(to, known)}; connect to it before sending"
        )
