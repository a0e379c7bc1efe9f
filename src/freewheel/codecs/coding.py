"""One direction between a worker and a server: vectors, by a codec, as the tensors of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from freewheel.codecs.base import Encoded
from freewheel.codecs.parse import CodecSpec, make_codec


class Coding:
    """One end of a stream of vectors; the other end has one with the same codec.

    Args:
        spec: the codec, such as ``"error_feedback+top_k:0.01"``.
        seed: of random rounding.

    Attributes:
        coded: False where vectors travel as they are.

    Example:
        >>> import torch
        >>> from freewheel.codecs.coding import Coding
        >>> sender, receiver = Coding("cast:bf16", 0), Coding("cast:bf16", 0)
        >>> tensors, meta = sender.encode(torch.ones(4))
        >>> vector, rest = receiver.decode((*tensors, torch.zeros(1)), meta, 4, torch.float32)
        >>> vector.tolist(), len(rest)
        ([1.0, 1.0, 1.0, 1.0], 1)
    """

    def __init__(self, spec: CodecSpec, seed: int) -> None:
        codec = make_codec(spec)
        self._codec = None if codec.name == "identity" else codec
        self.coded = self._codec is not None
        self._generator = torch.Generator().manual_seed(seed)
        self._open: list[int] = []

    def encode(self, vector: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Return the tensors to send, and what a message must say of them."""
        if self._codec is None or not vector.numel():
            return (vector,), {}
        return self._message(self._codec.encode(vector, generator=self._generator))

    def round_trip(self, vector: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Any], Tensor]:
        """Return what ``encode`` does, and the vector that the other end will make of it."""
        if self._codec is None or not vector.numel():
            return (vector,), {}, vector
        encoded, arrives = self._codec.round_trip(vector, generator=self._generator)
        # what the codec keeps of it may not be written to
        return *self._message(encoded), arrives.clone()

    def decode(
        self, tensors: Sequence[Tensor], meta: Mapping[str, Any], size: int, dtype: torch.dtype
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the vector that was sent, and the message's other tensors.

        Args:
            tensors: of the message.
            meta: likewise.
            size: of the vector.
            dtype: likewise.

        Raises:
            WireError: the tensors are none that the codec makes for such a vector.
        """
        parts = meta.get("parts")
        if self._codec is None or parts is None:
            return tensors[0], tensors[1:]
        encoded = Encoded(tuple(tensors[:parts]), tuple(meta.get("info", ())))
        vector = self._codec.decode(encoded, (size,), dtype)
        # what the codec keeps of it may not be written to by a fold
        return vector.clone(), tensors[parts:]

    def _message(self, encoded: Encoded) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        self._open.append(encoded.ticket)
        meta: dict[str, Any] = {"parts": len(encoded.payload)}
        if encoded.info:
            meta["info"] = list(encoded.info)
        return encoded.payload, meta

    def settle(self) -> None:
        """Commit the codec's state: what was sent has arrived."""
        if self._codec is not None:
            for ticket in self._open:
                self._codec.commit(ticket=ticket)
            self._open.clear()


def codings(
    push: CodecSpec, pull: CodecSpec, seed: int, server: int, worker: int
) -> tuple[Coding, Coding]:
    """Return one end of the pushes, and one of the pulls, between a server and a worker.

    Args:
        push: the codec of pushes.
        pull: the codec of pulls.
        seed: of the run.
        server: rank.
        worker: rank.

    Example:
        >>> from freewheel.codecs.coding import codings
        >>> len(codings("identity", "quantise:8", seed=0, server=0, worker=3))
        2
    """
    seed += 1_000_003 * worker + 1_009 * server
    return Coding(push, seed), Coding(pull, seed + 1)
