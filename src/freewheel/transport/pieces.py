"""A payload cut into pieces, and put together again in one buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from freewheel.errors import WireError
from freewheel.transport.schema import Buffer, Schema

#: Payloads below this are copied behind the header, and neighbouring small tensors into one frame:
#: a frame costs more than such a copy.
JOIN_BYTES = 64 << 10


def joined(buffers: Sequence[Buffer]) -> list[Buffer]:
    """Return the buffers with neighbouring small ones copied into one.

    Example:
        >>> from freewheel.transport.pieces import joined
        >>> [len(frame) for frame in joined([bytes(3), bytes(4), bytes(70_000), bytes(5)])]
        [7, 70000, 5]
    """
    frames: list[Buffer] = []
    small: list[Buffer] = []
    for buffer in (*buffers, None):
        if buffer is not None and len(buffer) < JOIN_BYTES:
            small.append(buffer)
            continue
        if any(map(len, small)):
            frames.append(b"".join(small))
        small = []
        if buffer is not None:
            frames.append(buffer)
    return frames


def cut(buffers: Sequence[memoryview], piece_bytes: int) -> list[tuple[int, list[Buffer]]]:
    """Return (offset, parts of the buffers) for each piece of the payload, without copying.

    Example:
        >>> from freewheel.transport.pieces import cut
        >>> pieces = cut([memoryview(b"abc"), memoryview(b"defgh")], 4)
        >>> [(offset, [bytes(part) for part in parts]) for offset, parts in pieces]
        [(0, [b'abc', b'd']), (4, [b'efgh'])]
    """
    pieces: list[tuple[int, list[Buffer]]] = [(0, [])]
    room = piece_bytes
    for buffer in buffers:
        start = 0
        while start < len(buffer):
            if room == 0:
                pieces.append((pieces[-1][0] + piece_bytes, []))
                room = piece_bytes
            part = buffer[start : start + room]
            pieces[-1][1].append(part)
            start, room = start + len(part), room - len(part)
    return pieces


class Assembly:
    """A message of which pieces come in order; its buffer is taken once, for all of them.

    Args:
        schema: checked against the limits before.
        head: the fields of the header that are the same in all its pieces.
        meta: from the first piece.

    Raises:
        WireError: there is no memory for it.
    """

    def __init__(self, schema: Schema, head: tuple[int, ...], meta: dict[str, Any]) -> None:
        try:
            self.buffer = torch.empty(schema.total, dtype=torch.uint8).numpy().data
        except (RuntimeError, MemoryError) as error:
            raise WireError(f"no memory for {schema.total} bytes: {error}"[:200]) from error
        self.meta = meta
        self.num_bytes = 0
        self._schema = schema
        self._head = head
        self._filled = 0

    @property
    def complete(self) -> bool:
        """Whether all bytes have come."""
        return self._filled == self._schema.total

    def is_of(self, schema: Schema, head: tuple[int, ...]) -> bool:
        """Return whether a piece with this header belongs to this message."""
        return schema is self._schema and head == self._head

    def add(self, offset: int, payload: Sequence[Buffer], num_bytes: int) -> None:
        """Put a piece in its place.

        Raises:
            WireError: it does not begin where the last one ended, or is too long.
        """
        size = sum(map(len, payload))
        if offset != self._filled:
            raise WireError(f"a piece at {offset} that does not continue the one before")
        if not 0 < size <= self._schema.total - offset:
            raise WireError(f"a piece of {size} bytes at {offset} of {self._schema.total}")
        for frame in payload:
            self.buffer[self._filled : self._filled + len(frame)] = frame
            self._filled += len(frame)
        self.num_bytes += num_bytes
