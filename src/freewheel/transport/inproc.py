"""A link between threads of one process: for tests, and for runs of one process.

Messages go through the same bytes as on a network, so copies, refusals and counts are the same.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Mapping

from freewheel.errors import ConfigError, LinkTimeoutError
from freewheel.transport.base import Message
from freewheel.transport.mailbox import MailboxLink
from freewheel.transport.schema import Buffer, Limits
from freewheel.transport.wire import RUN_ID_BYTES, Decoder, Encoder


class _Inbox:
    """What is on its way to one link: per sender, control and bulk apart."""

    def __init__(self) -> None:
        self.lanes: dict[tuple[str, bool], deque[list[Buffer]]] = {}
        self.open = True


class InprocHub:
    """A network of threads: links made by one hub reach each other by name.

    Args:
        queue_messages: how many transfers may wait between two links before ``send`` blocks.
        limits: sizes of pieces and messages.
        max_waiting_bytes: see ``MailboxLink``.

    Example:
        >>> import torch
        >>> from freewheel.transport.base import Message
        >>> from freewheel.transport.inproc import InprocHub
        >>> hub = InprocHub()
        >>> a, b = hub.link("stage 0"), hub.link("stage 1")
        >>> a.connect({"stage 1": b.address})
        >>> a.send("stage 1", Message("forward", (torch.ones(2),)))
        >>> b.receive(kind="forward", timeout_s=5).tensors[0].tolist()
        [1.0, 1.0]
        >>> a.close(), b.close()
        (None, None)
    """

    def __init__(
        self,
        queue_messages: int = 16,
        limits: Limits | None = None,
        max_waiting_bytes: int = 1 << 30,
    ) -> None:
        self.queue_messages = queue_messages
        self.limits = limits or Limits()
        self.max_waiting_bytes = max_waiting_bytes
        self.run_id = os.urandom(RUN_ID_BYTES)
        self.changed = threading.Condition()
        self.inboxes: dict[str, _Inbox] = {}

    def link(self, name: str) -> InprocLink:
        """Make the link of this name; one that was closed before is replaced by it."""
        if name in self.inboxes and self.inboxes[name].open:
            raise ConfigError(f"this hub has an open link {name!r} already; close it first")
        return InprocLink(name, self)


class InprocLink(MailboxLink):
    """One thread's end; made by ``InprocHub.link``."""

    def __init__(self, name: str, hub: InprocHub) -> None:
        super().__init__(name, hub.max_waiting_bytes)
        self._hub = hub
        self._inbox = hub.inboxes[name] = _Inbox()
        self._peers: dict[str, str] = {}
        self._encoders: dict[tuple[str, bool], tuple[_Inbox, Encoder]] = {}
        self._decoders: dict[tuple[str, bool], Decoder] = {}

    @property
    def address(self) -> str:
        """Where others of the same hub reach this link."""
        return f"inproc://{self.name}"

    def connect(self, peers: Mapping[str, str]) -> None:
        """Make peers known by name, as ``Link.connect`` says."""
        self._check_open()
        self._peers.update(peers)

    def send(self, to: str, message: Message, *, timeout_s: float = 60.0) -> None:
        """Hand a message over, as ``Link.send`` says."""
        self._check_open()
        if to not in self._peers:
            self._raise_unknown(to, self._peers)
        deadline = time.monotonic() + timeout_s
        bulk = bool(message.tensors)
        inbox, encoder = self._reach(to, message, bulk, deadline, timeout_s)
        encoded = encoder.encode(message)
        # Copied here, as a network would: the receiver may write to what it gets.
        for piece in encoded.pieces:
            frames: list[Buffer] = [bytearray(frame) for frame in piece]
            with self._hub.changed:
                lane = inbox.lanes.setdefault((self.name, bulk), deque())
                try:
                    while len(lane) >= self._hub.queue_messages and inbox.open:
                        self._block(to, message, deadline, timeout_s, "its queue stayed full")
                except BaseException:
                    encoder.forget()
                    raise
                lane.append(frames)
                self._hub.changed.notify_all()
        self.traffic.sent(to, encoded.num_bytes)

    def close(self, linger_s: float = 1.0) -> None:
        """Leave the hub; what waits for this link is dropped."""
        if not self._closed:
            self._closed = True
            with self._hub.changed:
                self._inbox.open = False
                self._inbox.lanes.clear()
                self._hub.changed.notify_all()
            self._mailbox.clear()

    def _reach(
        self, to: str, message: Message, bulk: bool, deadline: float, timeout_s: float
    ) -> tuple[_Inbox, Encoder]:
        """Wait for the peer to be there; a new one gets a new encoder."""
        name = self._peers[to].removeprefix("inproc://")
        with self._hub.changed:
            while name not in self._hub.inboxes or not self._hub.inboxes[name].open:
                self._block(to, message, deadline, timeout_s, "it could not be reached")
            inbox = self._hub.inboxes[name]
        known = self._encoders.get((to, bulk))
        if known is None or known[0] is not inbox:
            known = inbox, Encoder(self._hub.run_id, self._hub.limits)
            self._encoders[to, bulk] = known
        return known

    def _block(
        self, to: str, message: Message, deadline: float, timeout_s: float, why: str
    ) -> None:
        """Wait for a change, taking in what comes meanwhile, so that two that send go on."""
        self._drain()
        self._raise_interrupts()
        if not self._hub.changed.wait(max(deadline - time.monotonic(), 0.0)):
            raise LinkTimeoutError(
                f"{self.name} could not hand {message.kind!r} to {to} within {timeout_s:.3g} s: "
                f"{why}; see whether {to} is alive and receives, or raise the timeout"
            )

    def _wait(self, timeout_s: float) -> None:
        with self._hub.changed:
            self._hub.changed.wait_for(self._take_next, timeout_s)

    def _drain(self) -> None:
        while self._take_next():
            pass

    def _take_next(self) -> bool:
        """Take one transfer in, control before bulk; return whether there was one."""
        for of_bulk in (False, True):
            if of_bulk and self._mailbox.full:
                return False
            for (sender, bulk), lane in self._inbox.lanes.items():
                if bulk == of_bulk and lane:
                    frames = lane.popleft()
                    # To the end of the queue, so that no sender keeps others waiting.
                    self._inbox.lanes[sender, bulk] = self._inbox.lanes.pop((sender, bulk))
                    self._hub.changed.notify_all()
                    self._take_in(sender, self._decoder(sender, bulk), frames)
                    return True
        return False

    def _decoder(self, sender: str, bulk: bool) -> Decoder:
        if (sender, bulk) not in self._decoders:
            self._decoders[sender, bulk] = Decoder(self._hub.run_id, sender, self._hub.limits)
        return self._decoders[sender, bulk]
