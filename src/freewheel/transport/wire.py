"""The bytes of a message: a fixed header, and raw tensor bytes under a schema agreed once.

A message is a sequence of frames, which a carrier keeps apart::

    header [+ payload, where that is small]   [schema]   [meta]   [payload] [payload] ...

The header is 24 bytes, little-endian: format version and flags (1 byte each), schema id (2), run
id (8), clock (4), number of samples (4), index (2), sequence (2). A schema (kind, tree, dtypes,
shapes) is announced by the first message that uses it; later ones name its id. The payload is the
tensors' bytes one after the other; it may be cut into frames anywhere. A payload larger than
``piece_bytes`` travels as several such sequences (pieces), each with 8 more bytes of header, the
offset; the receiver puts them into one buffer, allocated once.

Nothing here knows a socket or a clock. Decoding trusts nothing: sizes, dtypes and shapes are held
against ``Limits`` before memory is taken, and whatever does not fit raises ``WireError``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack
from torch import Tensor

from freewheel.errors import ConfigError, LinkError, WireError
from freewheel.transport.base import Message
from freewheel.transport.pieces import JOIN_BYTES, Assembly, cut, joined
from freewheel.transport.schema import (
    NAMES,
    Buffer,
    Limits,
    Schema,
    parse_schema,
    tensor_bytes,
    view,
    views,
)

VERSION = 1
HEADER = struct.Struct("<BBH8sIIHH")
RUN_ID_BYTES = 8

_SCHEMA, _META, _PIECE, _STAMP = 1, 2, 4, 8
_OFFSET = struct.Struct("<Q")
_DELIVER_AT = struct.Struct("<q")


class Encoded(NamedTuple):
    """A message as frames, by piece, and the bytes that these cost on the wire."""

    pieces: list[list[Buffer]]
    num_bytes: int


def framed_bytes(frames: Sequence[Buffer], uncounted: int = 0) -> int:
    """Return the bytes of these frames with ZMTP framing: 2 each, 9 beyond 255 bytes.

    Args:
        frames: of one piece, header first.
        uncounted: bytes of the first frame that a real link would not carry.

    Example:
        >>> from freewheel.transport.wire import framed_bytes
        >>> framed_bytes([bytes(24), bytes(1000)])
        1035
    """
    sizes = [len(frame) for frame in frames]
    sizes[0] -= uncounted
    return sum(size + (2 if size <= 255 else 9) for size in sizes)


class Encoder:
    """Turns messages from one sender to one receiver into frames.

    Args:
        run_id: eight bytes that tell this run from any other.
        limits: what the receiver will refuse is refused here first, with a remedy.

    Example:
        >>> import torch
        >>> from freewheel.transport.base import Message
        >>> from freewheel.transport.wire import Decoder, Encoder
        >>> encoder, decoder = Encoder(b"run-0001"), Decoder(b"run-0001", "stage 0")
        >>> for _ in range(2):
        ...     encoded = encoder.encode(Message("forward", (torch.ones(2),), clock=7))
        ...     message, num_bytes = decoder.decode(encoded.pieces[0])
        >>> message.tensors[0].tolist(), message.sender, num_bytes  # 24 + 8 payload + 2 framing
        ([1.0, 1.0], 'stage 0', 34)
    """

    def __init__(self, run_id: bytes, limits: Limits | None = None) -> None:
        if len(run_id) != RUN_ID_BYTES:
            raise ConfigError(f"a run id must be {RUN_ID_BYTES} bytes, got {len(run_id)}")
        self._run_id = run_id
        self._limits = limits or Limits()
        self._ids: dict[bytes, int] = {}
        self._text_bytes = 0
        self._packer = msgpack.Packer()
        self._next_id = 0
        self._sequence = 0

    def forget(self) -> None:
        """Announce every schema again: the receiver may have missed some, or be a new process."""
        self._ids.clear()
        self._text_bytes = 0

    def encode(self, message: Message) -> Encoded:
        """Return the frames of a message, and what they cost.

        Raises:
            ModelError: a tensor that cannot travel.
            LinkError: a field out of its range, or more bytes than the limits allow.
        """
        limits = self._limits
        buffers = [tensor_bytes(tensor) for tensor in message.tensors]
        total = sum(map(len, buffers))
        if total > limits.max_tensor_bytes:
            raise LinkError(
                f"{message.kind!r} holds {total} bytes of tensors; one message takes at most "
                f"{limits.max_tensor_bytes}; send fewer tensors at a time or raise max_tensor_bytes"
            )
        schema_id, schema = self._agree(message)
        meta = self._text(dict(message.meta), "meta", message.kind) if message.meta else b""
        flags = bool(schema) * _SCHEMA | bool(meta) * _META | (message.deliver_at_ns != 0) * _STAMP
        text: list[Buffer] = [frame for frame in (schema, meta) if frame]
        uncounted = _DELIVER_AT.size if flags & _STAMP else 0
        self._sequence = (self._sequence + 1) & 0xFFFF
        if total <= limits.piece_bytes:
            head = self._header(message, flags, schema_id, 0)
            if total < JOIN_BYTES:
                frames = [b"".join((head, *buffers)), *text]
            else:
                frames = [head, *text, *joined(buffers)]
            return Encoded([frames], framed_bytes(frames, uncounted))
        pieces: list[list[Buffer]] = []
        for offset, parts in cut(buffers, limits.piece_bytes):
            head = self._header(message, flags | _PIECE, schema_id, offset)
            pieces.append([head, *text, *joined(parts)])
            flags, text = flags & ~(_SCHEMA | _META), []
        return Encoded(pieces, sum(framed_bytes(piece, uncounted) for piece in pieces))

    def _header(self, message: Message, flags: int, schema_id: int, offset: int) -> bytes:
        try:
            head = HEADER.pack(
                *(VERSION, flags, schema_id, self._run_id),
                *(message.clock, message.num_samples, message.index, self._sequence),
            )
        except struct.error as error:
            raise LinkError(
                f"{message.kind!r} has clock {message.clock}, num_samples {message.num_samples}, "
                f"index {message.index}; the first two must be in [0, 2**32), index in [0, 2**16)"
            ) from error
        if flags & _PIECE:
            head += _OFFSET.pack(offset)
        if flags & _STAMP:
            head += _DELIVER_AT.pack(message.deliver_at_ns)
        return head

    def _agree(self, message: Message) -> tuple[int, bytes]:
        """Return the schema's id, and its text if the receiver has not had it yet."""
        dtypes_and_shapes = [[NAMES[t.dtype], list(t.shape)] for t in message.tensors]
        schema = self._text([message.kind, message.tree, dtypes_and_shapes], "schema", message.kind)
        known = self._ids.get(schema)
        if known is not None:
            return known, b""
        limits = self._limits
        while self._ids and (
            len(self._ids) == limits.max_schemas
            or self._text_bytes + len(schema) > limits.max_schema_bytes
        ):
            oldest = next(iter(self._ids))
            self._text_bytes -= len(oldest)
            del self._ids[oldest]
        self._ids[schema] = schema_id = self._next_id
        self._text_bytes += len(schema)
        self._next_id = (self._next_id + 1) % self._limits.max_schemas
        return schema_id, schema

    def _text(self, value: Any, what: str, kind: str) -> bytes:
        try:
            text: bytes = self._packer.pack(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise LinkError(
                f"the {what} of {kind!r} cannot be written ({error}); "
                "use None, bool, int, float, str, bytes, lists and dicts of these"
            ) from error
        if len(text) > self._limits.max_text_bytes:
            raise LinkError(
                f"the {what} of {kind!r} takes {len(text)} bytes, at most "
                f"{self._limits.max_text_bytes}; send large data as tensors"
            )
        return text


class Decoder:
    """Turns frames from one sender back into messages; the other half of an ``Encoder``.

    Args:
        run_id: eight bytes; messages of another run are refused.
        sender: whose frames these are; stands in the messages.
        limits: what is larger is refused before memory is taken for it.
    """

    def __init__(self, run_id: bytes, sender: str, limits: Limits | None = None) -> None:
        self._run_id = run_id
        self._sender = sender
        self._limits = limits or Limits()
        self._schemas: dict[int, tuple[Schema, int]] = {}
        self._text_bytes = 0
        self._assembly: Assembly | None = None

    def decode(self, frames: Sequence[Buffer]) -> tuple[Message, int] | None:
        """Return the message and its bytes on the wire, or None while pieces are missing.

        Args:
            frames: of one piece. Large ones are not copied: tensors keep them alive.

        Raises:
            WireError: the frames are not a message of this run from this sender, or break a limit.
        """
        if not frames or sum(map(len, frames)) > self._limits.max_message_bytes:
            raise WireError("no frames, or more bytes than max_message_bytes in one transfer")
        first, rest = memoryview(frames[0]), list(frames[1:])
        if len(first) < HEADER.size:
            raise WireError(f"a header of {len(first)} bytes, expected {HEADER.size}")
        version, flags, schema_id, run_id, *head = HEADER.unpack_from(first)
        if run_id != self._run_id:
            raise WireError(f"a message of another run, {run_id.hex()}, from {self._sender}")
        if version != VERSION or flags > 15:
            raise WireError(f"format version {version} with flags {flags}, expected {VERSION}")
        at, extra = HEADER.size, _OFFSET.size * bool(flags & _PIECE)
        if len(first) < at + extra + _DELIVER_AT.size * bool(flags & _STAMP):
            raise WireError("a header cut short")
        offset = _OFFSET.unpack_from(first, at)[0] if flags & _PIECE else 0
        at += extra
        deliver_at_ns, uncounted = 0, 0
        if flags & _STAMP:
            (deliver_at_ns,) = _DELIVER_AT.unpack_from(first, at)
            uncounted = _DELIVER_AT.size
            at += uncounted
        num_bytes = framed_bytes(frames, uncounted)
        if len(rest) < bool(flags & _SCHEMA) + bool(flags & _META):
            raise WireError("a frame that the header announces is missing")
        if flags & _SCHEMA:
            self._learn(schema_id, rest.pop(0))
        meta = self._unpack_meta(rest.pop(0)) if flags & _META else {}
        if schema_id not in self._schemas:
            raise WireError(f"schema {schema_id} was never announced by {self._sender}")
        schema, _ = self._schemas[schema_id]
        inline = first[at:]
        payload = [inline, *rest] if len(inline) else rest
        if flags & _PIECE:
            if offset == 0:
                self._assembly = Assembly(schema, (*head, deliver_at_ns), meta)
            now, self._assembly = self._assembly, None
            if now is None or not now.is_of(schema, (*head, deliver_at_ns)):
                raise WireError(f"a piece at {offset} that does not continue the one before")
            now.add(offset, payload, num_bytes)
            if not now.complete:
                self._assembly = now
                return None
            meta, num_bytes = now.meta, now.num_bytes
            tensors = views(schema, now.buffer)
        else:
            self._assembly = None
            if sum(map(len, payload)) != schema.total:
                raise WireError(f"a payload that is not the {schema.total} bytes of its schema")
            tensors = self._tensors(schema, payload)
        clock, num_samples, index, _ = head
        message = Message(
            *(schema.kind, tensors, schema.tree, clock, index, num_samples, meta, self._sender),
            deliver_at_ns=deliver_at_ns,
        )
        return message, num_bytes

    def _learn(self, schema_id: int, text: Buffer) -> None:
        if schema_id >= self._limits.max_schemas:
            raise WireError(f"schema id {schema_id}, at most {self._limits.max_schemas - 1}")
        schema = parse_schema(self._unpack(text), self._limits.max_tensor_bytes)
        # The encoder forgets its oldest by the same rule, so none that it still uses goes here.
        self._text_bytes -= self._schemas.pop(schema_id, (None, 0))[1]
        while self._schemas and self._text_bytes + len(text) > self._limits.max_schema_bytes:
            self._text_bytes -= self._schemas.pop(next(iter(self._schemas)))[1]
        self._schemas[schema_id] = schema, len(text)
        self._text_bytes += len(text)

    def _unpack_meta(self, text: Buffer) -> dict[str, Any]:
        meta = self._unpack(text)
        if type(meta) is not dict or not all(type(key) is str for key in meta):
            raise WireError("meta is not a mapping from strings")
        return meta

    def _unpack(self, text: Buffer) -> Any:
        if len(text) > self._limits.max_text_bytes:
            raise WireError(f"{len(text)} bytes of text, at most {self._limits.max_text_bytes}")
        try:
            return msgpack.unpackb(text, strict_map_key=False, ext_hook=_no_extension)
        # Whatever the unpacker raises on hostile bytes (a dozen classes) means the same here.
        except Exception as error:
            raise WireError(f"text that is not msgpack: {error}"[:200]) from error

    def _tensors(self, schema: Schema, payload: list[Buffer]) -> tuple[Tensor, ...]:
        if not schema.total:
            return views(schema, b"")
        if len(payload) == 1:
            whole = payload[0]
            small = len(whole) < JOIN_BYTES
            return views(schema, bytearray(whole) if small else whole)
        if tuple(map(len, payload)) == schema.sizes:
            places = zip(payload, schema.dtypes, schema.shapes, strict=True)
            return tuple(view(frame, 0, dtype, shape) for frame, dtype, shape in places)
        return views(schema, bytearray().join(payload))


def _no_extension(code: int, data: bytes) -> Any:
    raise WireError(f"a msgpack extension of type {code} and {len(data)} bytes")
