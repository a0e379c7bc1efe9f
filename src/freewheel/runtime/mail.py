"""A link as a role uses it: keyed messages, timed, with word to the coordinator of long waits."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from freewheel.errors import LinkTimeoutError
from freewheel.runtime.stopwatch import Stopwatch
from freewheel.transport.base import COORDINATOR, TELEMETRY, Link, Message
from freewheel.transport.deadline import AdaptiveDeadline

#: No wait shorter than this is worth a word to the coordinator, which tells the person.
LONG_WAIT_S = 1.0
#: A wait as long as this is said, whatever waits there were before.
ALWAYS_SAID_S = 2.0
#: Median absolute deviations beyond the median that an arrival may take without a word.
DEVIATIONS = 20.0


class SilentPeerError(LinkTimeoutError):
    """A process that others need did not answer in time.

    Args:
        peer: its name, or ``ALL_REDUCE``.
        text: who waited for what.
    """

    def __init__(self, peer: str, text: str) -> None:
        super().__init__(text)
        self.peer = peer


class Mail:
    """Sends and receives for one process, counting the time that each takes.

    Whoever waits longer than arrivals of late make likely (``AdaptiveDeadline``) says so; the run
    is given up only after ``timeout_s``.

    Args:
        link: the process's end of the network.
        watch: where the time is added.
        timeout_s: how long to wait for a message before the run is given up.
        join_timeout_s: how long, if that is longer, for the first message of a peer, which may
            still be making its part of the model.

    Raises:
        LinkTimeoutError: from ``receive``, naming whom and what was waited for.
        Interrupted: from ``receive``, when the coordinator says stop.
    """

    def __init__(
        self, link: Link, watch: Stopwatch, timeout_s: float, join_timeout_s: float = 0.0
    ) -> None:
        self.link = link
        self.watch = watch
        self.timeout_s = timeout_s
        self._join_timeout_s = max(timeout_s, join_timeout_s)
        self._heard: set[str] = set()
        self._early: dict[tuple[str, str, int, int], Message] = {}
        self._expected: dict[tuple[str, str], AdaptiveDeadline] = {}

    def send(self, to: str, message: Message) -> None:
        """Hand over a message for ``to``."""
        with self.watch.sending():
            try:
                self.link.send(to, message, timeout_s=self.timeout_s)
            except LinkTimeoutError as error:
                raise SilentPeerError(to, str(error)) from error

    def receive(self, kind: str, sender: str, clock: int = 0, index: int = 0) -> Message:
        """Return the one message with this key; others of its kind and sender wait their turn."""
        key = (kind, sender, clock, index)
        if key in self._early:
            return self._early.pop(key)
        expected = self._expected.get((kind, sender))
        if expected is None:
            expected = AdaptiveDeadline(
                DEVIATIONS, min(LONG_WAIT_S, self.timeout_s), self.timeout_s
            )
            self._expected[kind, sender] = expected
        start = time.monotonic()
        known = sender in self._heard
        allowed_s = self.timeout_s if known else self._join_timeout_s
        with self.watch.waiting(sender):
            while True:
                left = allowed_s - (time.monotonic() - start)
                if left <= 0:
                    limit = "step" if known else "join"
                    raise SilentPeerError(
                        sender,
                        f"{self.link.name} waited {allowed_s - left:.0f} s for {kind!r} from "
                        f"{sender} at step {clock}; run.{limit}_timeout_s allows {allowed_s:g}. "
                        f"See that process's log, or raise the limit if a step may take longer.",
                    )
                try:
                    message = self.link.receive(
                        kind=kind, sender=sender, timeout_s=min(LONG_WAIT_S, left)
                    )
                except LinkTimeoutError:
                    waited = time.monotonic() - start
                    said = {"for": sender, "seconds": waited, "expected": str(expected)}
                    if waited >= expected.value_s or waited >= ALWAYS_SAID_S:
                        self.tell("waiting", said)
                    continue
                self._heard.add(sender)
                found = (kind, message.sender, message.clock, message.index)
                if found == key:
                    expected.observe(time.monotonic() - start)
                    return message
                self._early[found] = message

    def tell(self, kind: str, meta: Mapping[str, Any]) -> None:
        """Tell the coordinator something; it is counted apart from training traffic."""
        with self.link.traffic.counting(TELEMETRY):
            self.link.send(COORDINATOR, Message(kind, meta=meta), timeout_s=self.timeout_s)
