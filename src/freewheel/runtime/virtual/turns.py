"""Processes as threads of which one runs at a time, each with random numbers of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from freewheel.errors import WorkerError

#: What a process waits for: the kind of a message and its sender; None fits any.
Wanted = tuple[str | None, str | None]


class StoppedWithOthers(Exception):
    """Another process of the run has failed, so this one ends, too."""


class Turns:
    """Lets several pieces of blocking code take turns, always in the same order.

    A piece runs until it waits for a message that has not come; then the one that could go on
    first is next. PyTorch's generator of random numbers is put aside with each turn, as if each
    piece had a process of its own.

    Example:
        >>> from freewheel.runtime.virtual.turns import Turns
        >>> turns, seen = Turns(), []
        >>> def first():
        ...     turns.wait("first", (None, None))
        ...     seen.append("first")
        >>> def second():
        ...     seen.append("second")
        ...     turns.wake("first", "word", "second")
        >>> turns.run({"first": first, "second": second}, {})
        >>> seen
        ['second', 'first']
    """

    def __init__(self) -> None:
        self._gates: dict[str, threading.Semaphore] = {}
        self._waiting: dict[str, Wanted] = {}
        self._ready: deque[str] = deque()
        self._running: set[str] = set()
        self._over = threading.Event()
        self._error: BaseException | None = None

    def run(self, pieces: Mapping[str, Callable[[], Any]], random: Mapping[str, Tensor]) -> None:
        """Run all pieces to their end.

        Args:
            pieces: by name.
            random: state of PyTorch's generator that a piece starts from; by default this one's.

        Raises:
            WorkerError: all wait, and nobody could send what they wait for.
            Exception: the first one that a piece raised.
        """
        before = torch.get_rng_state()
        threads = []
        for name, piece in pieces.items():
            self._gates[name] = threading.Semaphore(0)
            state = random.get(name, before)
            threads.append(
                threading.Thread(target=self._piece, args=(name, piece, state), name=name)
            )
        self._running = set(pieces)
        self._ready.extend(pieces)
        for thread in threads:
            thread.start()
        try:
            self._next()
            self._over.wait()
        except BaseException as error:  # such as Ctrl-C: let all of them end first
            self._fail(error)
        for thread in threads:
            thread.join()
        torch.set_rng_state(before)
        if self._error is not None:
            raise self._error

    def wait(self, name: str, wanted: Wanted) -> None:
        """Let others go on until such a message has come.

        Raises:
            StoppedWithOthers: the run ends.
        """
        self._waiting[name] = wanted
        state = torch.get_rng_state()
        self._next()
        self._gates[name].acquire()
        torch.set_rng_state(state)
        if self._error is not None:
            raise StoppedWithOthers

    def wake(self, name: str, kind: str, sender: str) -> None:
        """Say that a message has come; whoever waits for it can go on."""
        wanted = self._waiting.get(name)
        if wanted is None or wanted[0] not in (None, kind) or wanted[1] not in (None, sender):
            return
        del self._waiting[name]
        self._ready.append(name)

    def _piece(self, name: str, piece: Callable[[], Any], state: Tensor) -> None:
        self._gates[name].acquire()
        try:
            if self._error is None:
                torch.set_rng_state(state)
                piece()
        except StoppedWithOthers:
            pass
        except BaseException as error:  # raised by ``run``, in the thread that called it
            self._fail(error)
        self._running.discard(name)
        if self._error is None:
            self._next()
        if not self._running:
            self._over.set()

    def _next(self) -> None:
        if self._ready:
            self._gates[self._ready.popleft()].release()
        elif self._waiting:
            waits = ", ".join(
                f"{name} for {kind or 'a message'!r} from {sender or 'anyone'}"
                for name, (kind, sender) in self._waiting.items()
            )
            self._fail(
                WorkerError(
                    f"nothing can happen any more, and these wait: {waits}; the protocol's "
                    f"machines of different stages disagree about what comes next"
                )
            )

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = error
        for gate in self._gates.values():
            gate.release()
