"""Virtual time: a queue of calls, run in the order of their time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class EventQueue:
    """Runs calls in the order of their virtual time; calls of one time in the order they were made.

    Attributes:
        now_s: virtual seconds since the start.

    Example:
        >>> from freewheel.simulate.queue import EventQueue
        >>> queue, seen = EventQueue(), []
        >>> queue.at(2.0, seen.append, "later")
        >>> queue.at(1.0, seen.append, "sooner")
        >>> queue.run()
        >>> seen, queue.now_s
        (['sooner', 'later'], 2.0)
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._made = 0

    def at(self, time_s: float, call: Callable[..., Any], *args: Any) -> None:
        """Call ``call(*args)`` at this time; in the past means now."""
        self._made += 1
        heapq.heappush(self._heap, (max(time_s, self.now_s), self._made, call, args))

    def after(self, delay_s: float, call: Callable[..., Any], *args: Any) -> None:
        """Call ``call(*args)`` in ``delay_s`` seconds."""
        self.at(self.now_s + delay_s, call, *args)

    def run(self) -> None:
        """Run until no call is left."""
        while self._heap:
            self.now_s, _, call, args = heapq.heappop(self._heap)
            call(*args)
