"""A slow or broken network, made of a fast one: rate, delay, jitter and faults, without root.

Each link has a virtual network card. What it sends leaves one after the other at the card's rate,
and arrives one way's delay later; what arrives from several senders shares the receiver's rate.
The sender stamps each message with its time of arrival, on the clock that all processes of one
machine share (``CLOCK_MONOTONIC``), and the receiver holds it back until then. So all processes of
a run must be on one machine, and have links shaped alike.

Sizes include what TCP/IP would add (66 bytes a packet of 1448), so that times agree with a real
link; the bytes that are counted do not, and are those of the link underneath.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
import time
from collections.abc import Mapping
from dataclasses import replace

import msgpack
import torch

from freewheel.errors import ConfigError, LinkTimeoutError
from freewheel.transport.base import Interrupted, Link, Message
from freewheel.transport.faults import FaultPlan
from freewheel.transport.mailbox import MailboxLink
from freewheel.transport.wire import HEADER

_PACKET_BYTES, _PACKET_OVERHEAD_BYTES = 1448, 66


class ShapedLink(MailboxLink):
    """Any link, as if over a slower network.

    Args:
        inner: the link underneath; this one takes its name and address, and closes it.
        rate_mbit: of the card, each way, in 10**6 bits/s; None for no limit.
        delay_ms: one-way.
        jitter_ms: added to each delay, uniform in [0, jitter_ms]; order holds in each lane.
        plan: faults on purpose.
        seed: of jitter and faults.
        burst_bytes: what the card sends at once after a pause, as a token bucket does; None for
            what the links of ``benchmarks/netlab`` let through: 2 ms, at least 16 KiB, without
            a delay, and nothing with one.
        buffer_bytes: ``send`` blocks while more than this has not left the card, as on a socket.
        queue_ms: a message without tensors waits behind bulk for at most this long: the depth of
            the queues in network gear, beyond which TCP holds a sender back.

    Raises:
        ConfigError: a negative or zero setting.

    Example:
        >>> import time, torch
        >>> from freewheel.transport.base import Message
        >>> from freewheel.transport.inproc import InprocHub
        >>> from freewheel.transport.shaped import ShapedLink
        >>> hub = InprocHub()
        >>> a = ShapedLink(hub.link("a"), rate_mbit=10, delay_ms=5)
        >>> b = ShapedLink(hub.link("b"), rate_mbit=10, delay_ms=5)
        >>> a.connect({"b": b.address})
        >>> start_s = time.monotonic()
        >>> a.send("b", Message("forward", (torch.zeros(6250),)))  # 25 kB: 20 ms
        >>> _ = b.receive(kind="forward")
        >>> 0.025 <= time.monotonic() - start_s
        True
        >>> a.close(), b.close()
        (None, None)
    """

    def __init__(
        self,
        inner: Link,
        rate_mbit: float | None = None,
        delay_ms: float = 0.0,
        *,
        jitter_ms: float = 0.0,
        plan: FaultPlan | None = None,
        seed: int = 0,
        burst_bytes: int | None = None,
        buffer_bytes: int = 4 << 20,
        queue_ms: float = 50.0,
        max_waiting_bytes: int = 1 << 30,
    ) -> None:
        if rate_mbit is not None and not rate_mbit > 0:
            raise ConfigError(f"rate_mbit must be above 0, got {rate_mbit}; leave it out for none")
        if min(delay_ms, jitter_ms, queue_ms, buffer_bytes, burst_bytes or 0) < 0:
            raise ConfigError(
                "delay_ms, jitter_ms, queue_ms, buffer_bytes and burst_bytes must be >= 0, got "
                f"{delay_ms}, {jitter_ms}, {queue_ms}, {buffer_bytes}, {burst_bytes}"
            )
        super().__init__(inner.name, max_waiting_bytes)
        self._inner = inner
        self._s_per_byte = 8e-6 / rate_mbit if rate_mbit else 0.0
        self._delay_s, self._jitter_s = delay_ms / 1000, jitter_ms / 1000
        self._queue_s, self._buffer_s = queue_ms / 1000, buffer_bytes * self._s_per_byte
        if burst_bytes is None:
            burst_bytes = 0 if delay_ms else max(16 << 10, int((rate_mbit or 0.0) * 256))
        self._burst_s = burst_bytes * self._s_per_byte
        self._random = random.Random(seed)
        self._trial = (plan or FaultPlan()).start(seed)
        self._made_s = time.monotonic()
        self._sent_until_s = self._received_until_s = 0.0
        self._last_s: dict[tuple[str, bool], float] = {}
        self._order = itertools.count()
        # Heaps of (when, order, message, bytes): on the way here, and coming in at this card.
        self._on_the_way: list[tuple[float, int, Message, int]] = []
        self._coming_in: list[tuple[float, int, Message, int]] = []
        self._corrupted = 0

    @property
    def address(self) -> str:
        """Where others reach the link underneath."""
        return self._inner.address

    @property
    def refused(self) -> int:
        """Transfers refused underneath, and messages corrupted by the plan."""
        return self._inner.refused + self._corrupted

    def connect(self, peers: Mapping[str, str]) -> None:
        """Make peers known by name, as ``Link.connect`` says."""
        self._inner.connect(peers)

    def interrupt_on(self, *kinds: str) -> None:
        """Let a message of these kinds raise ``Interrupted`` from any wait, once it is due."""
        super().interrupt_on(*kinds)
        # So that a send which blocks underneath hears of it.
        self._inner.interrupt_on(*kinds)

    def send(self, to: str, message: Message, *, timeout_s: float = 60.0) -> None:
        """Hand a message to the card; blocks while that has too much to do."""
        self._check_open()
        deadline = time.monotonic() + timeout_s
        while (wait_s := self._sent_until_s - time.monotonic() - self._buffer_s) > 0:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise LinkTimeoutError(
                    f"{self.name} could not hand {message.kind!r} to {to} within {timeout_s:.3g} s:"
                    f" its shaped card still has {self._buffer_s + wait_s:.3g} s to send; send "
                    "less, raise rate_mbit, or raise the timeout"
                )
            self._wait(min(wait_s, left_s))
            self._raise_interrupts()
        now_s = time.monotonic()
        verdict = self._trial.judge(self.name, to, message, now_s - self._made_s)
        arrive_s = self._leave(message, now_s) + self._delay_s + verdict.delay_s
        arrive_s += self._random.uniform(0, self._jitter_s)
        if verdict.not_before_s:
            arrive_s = max(arrive_s, self._made_s + verdict.not_before_s + self._delay_s)
        lane = to, bool(message.tensors)
        self._last_s[lane] = arrive_s = max(arrive_s, self._last_s.get(lane, 0.0))
        if verdict.lost:
            self.traffic.sent(to, _size(message))
            return
        if verdict.flipped:
            message = self._flipped(message)
        stamp = math.ceil(arrive_s * 1e9) * (-1 if verdict.corrupted else 1)
        before = self._inner.traffic.total_sent().num_bytes
        self._hand_over(to, replace(message, deliver_at_ns=stamp), deadline)
        self.traffic.sent(to, self._inner.traffic.total_sent().num_bytes - before)

    def close(self, linger_s: float = 1.0) -> None:
        """Close the link underneath; what it was handed arrives in its time."""
        if not self._closed:
            self._closed = True
            self._inner.close(linger_s)
            self._mailbox.clear()
            self._on_the_way.clear()
            self._coming_in.clear()

    def _leave(self, message: Message, now_s: float) -> float:
        """Return when the card has sent a message, which then is part of what it has to do."""
        busy_s = _on_a_wire(_size(message)) * self._s_per_byte
        # A token bucket: after a pause the card is ahead of its rate by a burst.
        start_s = max(now_s - self._burst_s, self._sent_until_s)
        self._sent_until_s = start_s + busy_s
        if not message.tensors:
            start_s = min(start_s, now_s + self._queue_s)
        return max(now_s, start_s + busy_s)

    def _hand_over(self, to: str, message: Message, deadline: float) -> None:
        """Send underneath; a message that interrupts that counts when it is due."""
        while True:
            received = self._inner.traffic.total_received().num_bytes
            try:
                left_s = max(deadline - time.monotonic(), 0.0)
                return self._inner.send(to, message, timeout_s=left_s)
            except Interrupted as early:
                self._came(early.message, received)
            while self._on_the_way or self._coming_in:
                self._wait(max(deadline - time.monotonic(), 0.0))
                self._raise_interrupts()

    def _wait(self, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while True:
            pulled = self._pull(0.0)
            now_s = time.monotonic()
            if self._release(now_s) or now_s >= until_s:
                return
            if pulled:
                continue
            due_s = min([until_s, *(heap[0][0] for heap in self._heaps() if heap)])
            # A link waits in whole milliseconds: the last one is slept, to be in time.
            if due_s - now_s > 0.002:
                self._pull(due_s - now_s - 0.001)
            elif due_s > now_s:
                time.sleep(due_s - now_s)

    def _heaps(self) -> tuple[list[tuple[float, int, Message, int]], ...]:
        return self._on_the_way, self._coming_in

    def _pull(self, timeout_s: float) -> bool:
        """Take one message from underneath, to be released in its time."""
        if self._mailbox.full:
            if timeout_s:
                time.sleep(timeout_s)
            return False
        received = self._inner.traffic.total_received().num_bytes
        try:
            message = self._inner.receive(timeout_s=timeout_s)
        except LinkTimeoutError:
            return False
        except Interrupted as early:
            message = early.message
        self._came(message, received)
        return True

    def _came(self, message: Message, received: int) -> None:
        """Put what came underneath on its way, ``received`` being the bytes of all before it."""
        if message.deliver_at_ns < 0:
            self._corrupted += 1
            return
        num_bytes = self._inner.traffic.total_received().num_bytes - received
        entry = message.deliver_at_ns / 1e9, next(self._order), message, num_bytes
        # Without a stamp it comes from a link that is not shaped, and is due at once.
        heapq.heappush(self._on_the_way if message.deliver_at_ns else self._coming_in, entry)

    def _release(self, now_s: float) -> bool:
        """Let in what is due; return whether something came to the mailbox."""
        while self._on_the_way and self._on_the_way[0][0] <= now_s:
            at_s, order, message, num_bytes = heapq.heappop(self._on_the_way)
            busy_s = _on_a_wire(num_bytes) * self._s_per_byte
            free_s = self._received_until_s
            if message.tensors:
                # The first bits came while the sender was sending the last, so one sender's
                # stream passes at full rate; only several senders queue here.
                free_s = max(free_s, at_s - busy_s - self._burst_s)
                self._received_until_s = free_s + busy_s
            else:
                # It may have overtaken bulk whose first bits are here already.
                self._received_until_s += busy_s if free_s > at_s else 0.0
                free_s = min(free_s, at_s + self._queue_s)
            entry = max(at_s, free_s + busy_s), order, message, num_bytes
            heapq.heappush(self._coming_in, entry)
        released = False
        while self._coming_in and self._coming_in[0][0] <= now_s:
            _, _, message, num_bytes = heapq.heappop(self._coming_in)
            self._mailbox.put(replace(message, deliver_at_ns=0), num_bytes)
            released = True
        return released

    def _flipped(self, message: Message) -> Message:
        """Return the message with one random bit of one tensor flipped."""
        full = [place for place, tensor in enumerate(message.tensors) if tensor.numel()]
        if not full:
            return message
        tensors, place = list(message.tensors), self._random.choice(full)
        tensor = tensors[place].detach().clone(memory_format=torch.contiguous_format)
        raw = tensor.view(-1).view(torch.uint8)
        raw[self._random.randrange(len(raw))] ^= 1 << self._random.randrange(8)
        tensors[place] = tensor
        return replace(message, tensors=tuple(tensors))


def _size(message: Message) -> int:
    """Return about how many bytes a message takes in steady state."""
    meta = len(msgpack.packb(dict(message.meta))) if message.meta else 0
    return HEADER.size + 2 + meta + sum(tensor.nbytes for tensor in message.tensors)


def _on_a_wire(num_bytes: int) -> int:
    return num_bytes + math.ceil(num_bytes / _PACKET_BYTES) * _PACKET_OVERHEAD_BYTES
