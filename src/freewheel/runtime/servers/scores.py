"""Scores of a run with servers: when they are due, and the parts that they are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from freewheel.runtime.context import passed
from freewheel.runtime.mail import Mail
from freewheel.runtime.servers.reader import Reader

#: Stands for the step of the parts that servers send at the end.
FINAL = 2**32 - 1


class Scores:
    """Brings the parts of one snapshot together and hands them to the reader.

    Args:
        reader: scores in a thread of its own.
        mail: by which scores go to the coordinator.
        num_servers: parts of a snapshot.
        every: steps between two scores; 0: only at the end.
        total_steps: of each worker.

    Attributes:
        missing: whether a snapshot that was asked for is not whole yet.
    """

    def __init__(
        self, reader: Reader, mail: Mail, num_servers: int, every: int, total_steps: int
    ) -> None:
        self.total_steps = total_steps
        self._reader, self._mail = reader, mail
        self._num_servers, self._every = num_servers, every
        self._scored = 0
        self._asked: dict[int, tuple[dict[str, Any], Sequence[Tensor]]] = {}
        self._parts: dict[int, dict[int, Tensor]] = {}

    @property
    def missing(self) -> bool:
        """Whether a snapshot that was asked for is not whole yet."""
        return bool(self._asked)

    def is_due(self, step: int) -> bool:
        """Whether the model is to be scored now that workers have taken so many steps."""
        due = step < self.total_steps and passed(self._scored, step, self._every)
        self._scored = max(self._scored, step)
        return due

    def ask(self, step: int, version: int, buffers: Sequence[Tensor]) -> None:
        """Expect the parts of a snapshot."""
        self._asked[step] = ({"step": step, "version": version}, list(buffers))

    def take(self, server: int, step: int, vector: Tensor) -> None:
        """Take in one server's part; the last one starts the scoring."""
        step = self.total_steps if step == FINAL else step
        parts = self._parts.setdefault(step, {})
        parts[server] = vector
        if len(parts) == self._num_servers and step in self._asked:
            row, buffers = self._asked.pop(step)
            del self._parts[step]
            self._reader.score(row, [parts[s] for s in range(self._num_servers)], buffers)

    def tell(self) -> None:
        """Tell the coordinator the scores that are ready."""
        for row in self._reader.results():
            self._mail.tell("evaluated", row)

    def close(self) -> None:
        """Finish what was asked, and tell it."""
        for row in self._reader.close():
            self._mail.tell("evaluated", row)
