"""The network in virtual time: a rate, a one-way delay, and one queue per network interface."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from freewheel.errors import ConfigError
from freewheel.simulate.queue import EventQueue

#: Bytes of a message that are not tensors, in steady state.
HEADER_BYTES = 32


@dataclass(frozen=True)
class LinkSpec:
    """What joins every machine to the network.

    Args:
        rate_mbit: rate of each interface, each way, in Mbit/s; None is without limit.
        delay_ms: one-way delay in milliseconds, >= 0.

    Raises:
        ConfigError: a number is out of its range.

    Example:
        >>> from freewheel.simulate import LinkSpec
        >>> link = LinkSpec.parse("100mbit,5ms")
        >>> link, link.transfer_s(1_250_000)
        (LinkSpec(rate_mbit=100.0, delay_ms=5.0), 0.1)
    """

    rate_mbit: float | None = None
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.rate_mbit is not None and not self.rate_mbit > 0:
            raise ConfigError(
                f"link rate must be > 0 Mbit/s, got {self.rate_mbit}; leave it out for no limit"
            )
        if not self.delay_ms >= 0:
            raise ConfigError(f"link delay must be >= 0 ms, got {self.delay_ms}")

    @classmethod
    def parse(cls, text: str) -> LinkSpec:
        """Read ``"100mbit,5ms"``, either part alone, or ``"none"``; also gbit, kbit, us and s.

        Raises:
            ConfigError: it does not look like that, or a number is out of its range.
        """
        rate: float | None = None
        delay = 0.0
        for part in [] if text == "none" else text.split(","):
            found = re.fullmatch(r"(-?\d*\.?\d+)(kbit|mbit|gbit|us|ms|s)", part.strip().lower())
            if not found:
                raise ConfigError(
                    f"link {text!r} must look like RATE,DELAY, e.g. 100mbit,5ms (units kbit mbit "
                    'gbit and us ms s), either part alone, or "none"'
                )
            value = float(found[1])
            if found[2].endswith("bit"):
                rate = value * {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}[found[2]]
            else:
                delay = value * {"us": 1e-3, "ms": 1.0, "s": 1e3}[found[2]]
        return cls(rate, delay)

    @property
    def delay_s(self) -> float:
        """One-way delay in seconds."""
        return self.delay_ms * 1e-3

    def transfer_s(self, num_bytes: float) -> float:
        """Return the seconds that so many bytes occupy an interface."""
        return 0.0 if self.rate_mbit is None else num_bytes * 8 / (self.rate_mbit * 1e6)


class Network:
    """Carries messages: each interface sends one after the other, and receives one after the other.

    A message of b bytes occupies the sender's interface for b / rate. Its first bit reaches the
    other side after the delay; there it occupies the receiver's interface for b / rate as well,
    behind what came first. Two idle interfaces thus cost b / rate + delay once, and N workers that
    push to one server at a time cost N b / rate.

    Args:
        queue: the run's virtual time.
        link: of every interface.
        parts: interfaces of each node that has several, such as a group of servers, each of which
            carries an equal part of every message of that node.
    """

    def __init__(
        self, queue: EventQueue, link: LinkSpec, parts: Mapping[int, int] | None = None
    ) -> None:
        self.queue, self.link, self._parts = queue, link, dict(parts or {})
        self.bytes_sent: defaultdict[int, int] = defaultdict(int)
        self.bytes_received: defaultdict[int, int] = defaultdict(int)
        self.messages_sent: defaultdict[int, int] = defaultdict(int)
        self._sends_until: defaultdict[int, float] = defaultdict(float)
        self._receives_until: defaultdict[int, float] = defaultdict(float)

    def send(
        self, source: int, target: int, num_bytes: int, call: Callable[..., Any], *args: Any
    ) -> float:
        """Send a message, and call ``call(*args)`` when its last bit has arrived.

        Args:
            source: number of the sending interface.
            target: number of the receiving one.
            num_bytes: of its tensors; a header comes on top.

        Returns:
            When its last bit has left the sender, in virtual seconds.
        """
        parts = max(self._parts.get(source, 1), self._parts.get(target, 1))
        num_bytes += parts * HEADER_BYTES
        self.bytes_sent[source] += num_bytes
        self.bytes_received[target] += num_bytes
        self.messages_sent[source] += parts
        lasts = self.link.transfer_s(num_bytes)
        starts = max(self.queue.now_s, self._sends_until[source])
        sent = starts + lasts / self._parts.get(source, 1)
        self._sends_until[source] = sent
        arrives, last = starts + self.link.delay_s, sent + self.link.delay_s
        self.queue.at(arrives, self._receive, target, lasts, last, call, args)
        return sent

    def _receive(
        self,
        target: int,
        lasts: float,
        last_bit_s: float,
        call: Callable[..., Any],
        args: tuple[Any, ...],
    ) -> None:
        begins = max(self.queue.now_s, self._receives_until[target])
        done = max(begins + lasts / self._parts.get(target, 1), last_bit_s)
        self._receives_until[target] = done
        self.queue.at(done, call, *args)

    def ring(self, members: list[int], num_bytes: int) -> float:
        """Count a ring all-reduce of so many bytes, and return how long it lasts, in seconds.

        ``2 (N - 1)`` steps, each of ``num_bytes / N`` and one delay.

        References:
            Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
            workstations", 2009.
        """
        steps = 2 * (len(members) - 1)
        part = -(-num_bytes // max(1, len(members))) + HEADER_BYTES
        for member in members:
            self.bytes_sent[member] += steps * part
            self.bytes_received[member] += steps * part
            self.messages_sent[member] += steps
        return steps * (self.link.transfer_s(part) + self.link.delay_s)
