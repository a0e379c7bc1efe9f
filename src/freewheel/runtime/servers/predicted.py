"""A worker's parameters where both ends predict each other: one end of a pair for each server."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from freewheel.codecs.coding import Coding
from freewheel.monitors.dual_prediction import WorkerEnd
from freewheel.protocols.watch import Predicted
from freewheel.runtime.servers.packing import Packing
from freewheel.transport.base import Message


class PredictedParts:
    """What a worker holds back, and what it predicts of the servers.

    Args:
        watch: of the protocol.
        packing: of the trainable parameters.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from freewheel.protocols.watch import Predicted
        >>> from freewheel.runtime.servers.packing import Packing
        >>> from freewheel.runtime.servers.parts import split_flat
        >>> from freewheel.runtime.servers.predicted import PredictedParts
        >>> weight = nn.Parameter(torch.zeros(2))
        >>> parts = PredictedParts(Predicted("static", 0.1), Packing([weight], split_flat([2], 1)))
        >>> _ = weight.data.fill_(3.0)
        >>> round(parts.measure(clock=1)["error_norm"] ** 2, 9)
        18.0
    """

    def __init__(self, watch: Predicted, packing: Packing) -> None:
        self._packing = packing
        self.ends = [WorkerEnd(watch.predictor, part) for part in packing.pack_parameters()]

    def measure(self, clock: int) -> dict[str, float]:
        """Return how far the parameters are from what both ends predict, after a step."""
        own = self._packing.pack_parameters()
        squares = [e.stepped(part, clock) for e, part in zip(self.ends, own, strict=True)]
        names = ("error_norm", "move_norm", "state_norm")
        return {
            name: math.sqrt(sum(values))
            for name, values in zip(names, zip(*squares, strict=True), strict=True)
        }

    def ask(self) -> list[Tensor]:
        """Begin a request; return what a push carries, one vector a server."""
        return [end.ask() for end in self.ends]

    def answered(self, place: int, reply: Message, pull: Coding) -> tuple[Tensor, ...]:
        """Take in a server's reply; return the buffers that came with it."""
        told: Tensor | None = None
        rest: Sequence[Tensor] = reply.tensors
        if reply.kind == "params":
            size, dtype = self._packing.sizes[place], self._packing.parameters[0].dtype
            told, rest = pull.decode(reply.tensors, reply.meta, size, dtype)
        coded = "parts" in reply.meta
        own = self.ends[place].answered(reply.meta.get("w"), told, correction=coded)
        if own is not None:
            self._packing.unpack(place, own)
        return tuple(rest)
