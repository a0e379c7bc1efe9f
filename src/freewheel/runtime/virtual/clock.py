"""One process's virtual time, and where it went."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from freewheel.runtime.stopwatch import Stopwatch


class VirtualClock(Stopwatch):
    """A stopwatch that goes by virtual seconds: it stands still but for ``spend`` and ``reach``.

    Attributes:
        now_s: virtual seconds since the start of the run.

    Example:
        >>> from freewheel.runtime.virtual.clock import VirtualClock
        >>> clock = VirtualClock()
        >>> clock.spend(2.0)
        >>> with clock.waiting("stage 1"):
        ...     clock.reach(5.0)
        >>> lap = clock.lap()
        >>> lap["compute_s"], lap["wait_s"], lap["wait_for"], lap["virtual_s"]
        (2.0, 3.0, 'stage 1', 5.0)
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = self._since = 0.0

    def spend(self, seconds: float) -> None:
        """Compute for so long."""
        self.now_s += seconds

    def reach(self, at_s: float) -> None:
        """Wait until that time, if it is not past."""
        self.now_s = max(self.now_s, at_s)

    @contextmanager
    def waiting(self, peer: str) -> Iterator[None]:
        """Count what passes in the block as waiting for ``peer``."""
        start = self.now_s
        try:
            yield
        finally:
            if self.now_s > start:
                self.add_wait(peer, self.now_s - start)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Sending takes the card's time, and none of the process's."""
        yield

    def lap(self) -> dict[str, float | str | None]:
        """Return the virtual seconds since the last lap, and the time, ``virtual_s``."""
        wait = sum(self._wait.values())
        longest = max(self._wait, key=lambda peer: self._wait[peer], default=None)
        lap: dict[str, float | str | None] = {
            "compute_s": max(0.0, self.now_s - self._since - wait),
            "wait_s": wait,
            "send_s": 0.0,
            "wait_for": longest,
            "virtual_s": self.now_s,
        }
        self._since, self._wait = self.now_s, {}
        return lap
