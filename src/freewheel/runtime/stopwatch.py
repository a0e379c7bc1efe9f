"""Where a process's time goes: computing, waiting (and for whom), sending."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up seconds since the last ``lap``.

    Example:
        >>> from freewheel.runtime.stopwatch import Stopwatch
        >>> watch = Stopwatch()
        >>> with watch.waiting("stage 1"):
        ...     pass
        >>> sorted(watch.lap())
        ['compute_s', 'send_s', 'wait_for', 'wait_s']
    """

    def __init__(self) -> None:
        self._since = time.perf_counter()
        self._wait: dict[str, float] = {}
        self._send = 0.0

    @contextmanager
    def waiting(self, peer: str) -> Iterator[None]:
        """Count the block as waiting for ``peer``."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._wait[peer] = self._wait.get(peer, 0.0) + time.perf_counter() - start

    def add_wait(self, peer: str, seconds: float) -> None:
        """Count seconds as waiting for ``peer``, where that is known only afterwards."""
        self._wait[peer] = self._wait.get(peer, 0.0) + seconds

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Count the block as sending."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._send += time.perf_counter() - start

    def lap(self) -> dict[str, float | str | None]:
        """Return the seconds since the last lap, and start anew.

        Returns:
            ``compute_s`` (all that was neither waiting nor sending), ``wait_s``, ``send_s``, and
            ``wait_for``: the peer that was waited for longest, or None.
        """
        now = time.perf_counter()
        wait = sum(self._wait.values())
        longest = max(self._wait, key=lambda peer: self._wait[peer], default=None)
        lap: dict[str, float | str | None] = {
            "compute_s": max(0.0, now - self._since - wait - self._send),
            "wait_s": wait,
            "send_s": self._send,
            "wait_for": longest,
        }
        self._since, self._wait, self._send = now, {}, 0.0
        return lap
