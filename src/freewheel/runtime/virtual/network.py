"""Links between the roles of one process, whose messages take virtual time and real bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from freewheel.runtime.virtual.clock import VirtualClock
from freewheel.runtime.virtual.turns import Turns
from freewheel.simulate.link import LinkSpec
from freewheel.transport.base import COORDINATOR, EVALUATE, Message
from freewheel.transport.mailbox import MailboxLink
from freewheel.transport.schema import Buffer
from freewheel.transport.wire import RUN_ID_BYTES, Decoder, Encoder

_RUN_ID = bytes(RUN_ID_BYTES)
_MAX_WAITING_BYTES = 1 << 40


class VirtualNetwork:
    """Joins all roles of a run.

    What a process sends leaves its card one message after the other at the link's rate, and
    arrives one way's delay later. Messages go through the bytes of a real link, so copies, refusals
    and counts are the same. Scoring takes no time, and neither does word to the coordinator.

    Args:
        link: rate and delay.
        hear: is called with each message to the coordinator, and with the virtual time.
    """

    def __init__(self, link: LinkSpec, hear: Callable[[Message, float], None]) -> None:
        self.link = link
        self.hear = hear
        self.turns = Turns()
        self.links: dict[str, VirtualLink] = {}

    def open(self, name: str) -> VirtualLink:
        """Make the link of a process, by role and rank."""
        link = self.links[name] = VirtualLink(name, self)
        return link


class VirtualLink(MailboxLink):
    """One role's end; made by ``VirtualNetwork.open``.

    Example:
        >>> import torch
        >>> from freewheel.runtime.virtual.network import VirtualNetwork
        >>> from freewheel.simulate.link import LinkSpec
        >>> from freewheel.transport.base import Message
        >>> network = VirtualNetwork(LinkSpec(rate_mbit=1.0, delay_ms=10.0), print)
        >>> a, b = network.open("stage 0"), network.open("stage 1")
        >>> a.send("stage 1", Message("forward", (torch.zeros(1000),)))
        >>> message = b.receive(kind="forward", sender="stage 0")
        >>> b.clock.now_s > 0.010 + 4000 * 8 / 1e6, a.clock.now_s
        (True, 0.0)
    """

    def __init__(self, name: str, network: VirtualNetwork) -> None:
        super().__init__(name, _MAX_WAITING_BYTES)
        self.clock = VirtualClock()
        self._network = network
        self._sent_until_s = 0.0
        self._lanes: dict[tuple[str, bool], tuple[Encoder, Decoder]] = {}

    @property
    def address(self) -> str:
        """A name: nobody else can reach it."""
        return f"virtual://{self.name}"

    def connect(self, peers: Mapping[str, str]) -> None:
        """All links of a network know each other."""

    def send(self, to: str, message: Message, *, timeout_s: float = 60.0) -> None:
        """Hand a message to the card, as ``Link.send`` says."""
        self._check_open()
        if to == COORDINATOR:
            self._network.hear(replace(message, sender=self.name), self.clock.now_s)
            return
        if to not in self._network.links:
            self._raise_unknown(to, self._network.links)
        encoder, decoder = self._lane(to, bool(message.tensors))
        encoded = encoder.encode(message)
        self.traffic.sent(to, encoded.num_bytes)
        arrives_s = self._arrives_s(encoded.num_bytes)
        peer = self._network.links[to]
        for piece in encoded.pieces:
            # Copied here, as a network would: the receiver may write to what it gets.
            frames: list[Buffer] = [bytearray(frame) for frame in piece]
            decoded = decoder.decode(frames)
            if decoded is not None:
                peer.take_in(decoded[0], decoded[1], arrives_s)
        self._network.turns.wake(to, message.kind, self.name)

    def take_in(self, message: Message, num_bytes: int, arrives_s: float) -> None:
        """Keep a message that arrives at that time."""
        self._mailbox.put(replace(message, deliver_at_ns=round(arrives_s * 1e9)), num_bytes)

    def receive(
        self, *, kind: str | None = None, sender: str | None = None, timeout_s: float = 60.0
    ) -> Message:
        """Return the next message that fits; with no time, only one that has been sent.

        Raises:
            LinkTimeoutError: no time was given, and none has been sent.
            StoppedWithOthers: another process has failed.
        """
        self._check_open()
        but_not = self._interrupting - {kind} if kind else self._interrupting
        while True:
            found = self._mailbox.take(kind, sender, but_not)
            if found is not None:
                self.clock.reach(found[0].deliver_at_ns * 1e-9)
                return self._deliver(*found)
            self._raise_interrupts()
            if timeout_s <= 0:
                self._raise_nothing_came(kind, sender, timeout_s)
            self._wait(timeout_s, (kind, sender))

    def close(self, linger_s: float = 1.0) -> None:
        """Drop what is waiting."""
        self._closed = True
        self._mailbox.clear()

    def _wait(self, timeout_s: float, wanted: tuple[str | None, str | None] = (None, None)) -> None:
        if timeout_s > 0:
            self._network.turns.wait(self.name, wanted)

    def _lane(self, to: str, bulk: bool) -> tuple[Encoder, Decoder]:
        if (to, bulk) not in self._lanes:
            self._lanes[to, bulk] = Encoder(_RUN_ID), Decoder(_RUN_ID, self.name)
        return self._lanes[to, bulk]

    def _arrives_s(self, num_bytes: int) -> float:
        if self.traffic.phase == EVALUATE:
            return 0.0
        link = self._network.link
        leaves_s = max(self.clock.now_s, self._sent_until_s) + link.transfer_s(num_bytes)
        self._sent_until_s = leaves_s
        return leaves_s + link.delay_s
