"""Ctrl-C once, twice, and SIGTERM, as the person who started a run means them."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: How long a run that got SIGTERM may take to finish its step and save.
TERM_GRACE_S = 2.0


class StopSignals:
    """Counts requests to stop while a run goes on; to be used in a ``with`` statement.

    The first SIGINT or SIGTERM asks the run to save and stop. The second, or a SIGTERM that was not
    followed in ``TERM_GRACE_S``, raises ``KeyboardInterrupt``. Outside the main thread, where
    Python has no signal handlers, it does nothing.

    Example:
        >>> import signal
        >>> from freewheel.launch.signals import StopSignals
        >>> with StopSignals() as signals:
        ...     before = signals.asked()
        ...     signal.raise_signal(signal.SIGINT)
        ...     after = signals.asked()
        >>> before, after
        (False, True)
    """

    def __init__(self) -> None:
        self._count = 0
        self._deadline: float | None = None
        self._before: dict[int, Any] = {}
        self._held = False

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Whether the run is to save and stop.

        Raises:
            KeyboardInterrupt: it has not, in time.
        """
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise KeyboardInterrupt
        return self._count > 0

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside the block, which must be short, requests are counted and raise nothing."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self._count += 1
        if number == signal.SIGTERM and self._deadline is None:
            self._deadline = time.monotonic() + TERM_GRACE_S
        if self._count > 1 and not self._held:
            raise KeyboardInterrupt
