"""A worker's way back from the servers to all-reduce."""

from __future__ import annotations

from typing import Any

from freewheel.runtime.recorder import Recorder, Sums
from freewheel.runtime.servers.exchange import Exchange
from freewheel.transport.base import Message


class Returned(Exception):
    """A server gives its part back in place of an answer."""

    def __init__(self, message: Message) -> None:
        super().__init__(message.sender)
        self.message = message


class LeavingExchange(Exchange):
    """An exchange that may end with the parameters in the workers' hands."""

    def _await(
        self, kind: str | None, server: str, until_s: float, began_s: float | None
    ) -> Message | None:
        message = super()._await(kind, server, until_s, began_s)
        if message is not None and message.kind == "returned":
            raise Returned(message)
        return message


class CountingRecorder(Recorder):
    """Counts this worker's own steps, also where the steps of the run are others.

    Attributes:
        ahead: own steps less steps of the run; fast workers have taken more than one a step.
    """

    ahead = 0

    def step(
        self,
        step: int,
        sums: Sums,
        num_samples: int,
        lr: float | None,
        epoch: int,
        **more: Any,
    ) -> None:
        """Record a step, by this worker's own count."""
        super().step(step + self.ahead, sums, num_samples, lr, epoch, **more)
