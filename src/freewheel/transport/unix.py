"""The two ends of a connection between processes of one host, and the packets that cross it.

A connection goes one way: a hello with a ring of shared memory, then transfers. A small transfer is
in its packet; of a large one the packet says where in the ring it lies. All that comes back is a
word that there is room again.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from typing import NamedTuple

from freewheel.errors import WireError
from freewheel.transport.ring import ReceiveRing, SendRing, aligned
from freewheel.transport.schema import Buffer, Limits
from freewheel.transport.wire import RUN_ID_BYTES, Decoder, Encoder

SCHEME = "local://"
IDENTITY_BYTES = 8
_HELLO, _INLINE, _RING, _ROOM = b"H", b"I", b"R", b"F"
_VERSION = 1
_HELLO_FORM = struct.Struct(f"<cBB{RUN_ID_BYTES}s{IDENTITY_BYTES}s")
#: A transfer: letter, number of frames, where it lies in the ring; then the frames' sizes.
_HEAD_FORM = struct.Struct("<cHQ")
#: Transfers up to here are in their packet.
_INLINE_BYTES = 16 << 10
_MAX_FRAMES = 4096
PACKET_BYTES = _INLINE_BYTES + _HEAD_FORM.size + 4 * _MAX_FRAMES
#: One of the flags of ``wire``: such a transfer is copied as it is decoded.
_PIECE = 4


class Hello(NamedTuple):
    """Who opens a connection.

    Args:
        bulk: whether it is for messages with tensors.
        run_id: eight bytes.
        identity: eight bytes that tell a restarted process from the one before.
        name: role and rank.

    Example:
        >>> from freewheel.transport.unix import Hello
        >>> Hello.read(Hello(True, b"run-0001", b"process1", "stage 0").packet()).name
        'stage 0'
    """

    bulk: bool
    run_id: bytes
    identity: bytes
    name: str

    def packet(self) -> bytes:
        """Return the hello as a packet."""
        head = _HELLO_FORM.pack(_HELLO, _VERSION, self.bulk, self.run_id, self.identity)
        return head + self.name.encode()

    @staticmethod
    def read(packet: bytes) -> Hello:
        """Return the hello of a packet.

        Raises:
            WireError: it is none.
        """
        if len(packet) <= _HELLO_FORM.size:
            raise WireError(f"a hello of {len(packet)} bytes")
        kind, version, bulk, run_id, identity = _HELLO_FORM.unpack_from(packet)
        if kind != _HELLO or version != _VERSION:
            raise WireError(f"a hello of kind {kind!r} and version {version}")
        name = packet[_HELLO_FORM.size :].decode(errors="replace")
        return Hello(bool(bulk), run_id, identity, name)


class SendEnd:
    """The way to one peer, for control or bulk.

    Args:
        hello: says who this process is.
        address: where the peer listens.
        capacity: bytes of the ring; memory is taken as it is used.
        queue: transfers that may lie in the ring.
        limits: of messages.

    Raises:
        OSError: nobody listens there.
    """

    def __init__(
        self, hello: Hello, address: str, capacity: int, queue: int, limits: Limits
    ) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ring = SendRing(capacity, queue)
        self.encoder = Encoder(hello.run_id, limits)
        try:
            self.socket.connect(abstract(address))
            socket.send_fds(self.socket, [hello.packet()], [self.ring.descriptor])
            self.socket.setblocking(False)
        except BaseException:
            self.close()
            raise

    def offer(self, frames: list[Buffer]) -> bool:
        """Hand one transfer over; return False where there is no room for it.

        Raises:
            OSError: the peer has gone.
        """
        sizes = [len(frame) for frame in frames]
        start = 0  # no block of a ring begins there
        if sum(sizes) > _INLINE_BYTES:
            found = self.ring.put(frames, sizes)
            if found is None:
                return False
            start = found
        kind = _RING if start else _INLINE
        head = _HEAD_FORM.pack(kind, len(sizes), start) + struct.pack(f"<{len(sizes)}I", *sizes)
        try:
            self.socket.sendmsg([head] if start else [head, *frames])
        except BlockingIOError:
            if start:
                self.ring.take_back()
            return False
        return True

    def hear_of_room(self) -> None:
        """Take the word that there is room.

        Raises:
            OSError: the peer has gone.
        """
        with suppress(BlockingIOError):
            if not self.socket.recv(16):
                raise BrokenPipeError

    def close(self) -> None:
        """Close the connection; what was handed over can still be received."""
        self.socket.close()
        self.ring.close()


class ReceiveEnd:
    """A connection that somebody has opened, and that says nothing until its hello has come."""

    def __init__(self, found: socket.socket) -> None:
        found.setblocking(False)
        self.socket = found
        self.hello = Hello(False, b"", b"", "")
        self.decoder: Decoder | None = None
        self._ring: ReceiveRing | None = None

    def meet(self, run_id: bytes, limits: Limits) -> Hello | None:
        """Take the hello in; return None where the other end has gone without one.

        Raises:
            BlockingIOError: it has not come yet.
            WireError: it is none, or is of another run.
        """
        packet, descriptors, _, _ = socket.recv_fds(self.socket, 1024, 1)
        try:
            if not packet:
                return None
            self.hello = Hello.read(packet)
            if self.hello.run_id != run_id:
                raise WireError(f"it is of another run, {self.hello.run_id.hex()}")
            if not descriptors:
                raise WireError("a hello without shared memory")
            self._ring = ReceiveRing(descriptors.pop())
            self.decoder = Decoder(run_id, self.hello.name, limits)
            return self.hello
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def frames(self, packet: memoryview) -> tuple[list[memoryview], bool]:
        """Return the frames of a transfer, and whether a block is to be given back after use.

        Raises:
            WireError: the packet is no transfer.
        """
        if len(packet) < _HEAD_FORM.size or self._ring is None:
            raise WireError(f"a packet of {len(packet)} bytes")
        kind, count, start = _HEAD_FORM.unpack_from(packet)
        body = _HEAD_FORM.size + 4 * count
        if kind not in (_INLINE, _RING) or not 0 < count <= _MAX_FRAMES or body > len(packet):
            raise WireError(f"a packet of kind {kind!r} with {count} frames")
        sizes = struct.unpack_from(f"<{count}I", packet, _HEAD_FORM.size)
        if kind == _INLINE:
            whole = memoryview(bytes(packet[body:]))
            if len(whole) != sum(sizes):
                raise WireError(f"a packet of {len(whole)} bytes for frames of {sum(sizes)}")
            return _cut(whole, sizes, sizes), False
        frames = self._ring.frames(start, sizes)
        if len(frames[0]) > 1 and frames[0][1] & _PIECE:
            return frames, True
        # tensors will lie over this memory, so it must be our own
        steps = [aligned(size) for size in sizes]
        own = bytearray(self._ring.memory[start : start + sum(steps)])
        return _cut(memoryview(own), sizes, steps), True

    def give_back(self) -> None:
        """Give the oldest block of the ring back, and say so where the sender waits for it."""
        if self._ring is not None and self._ring.give_back():
            with suppress(OSError):  # it has gone, or looks by itself
                self.socket.send(_ROOM)

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()
        if self._ring is not None:
            self._ring.close()


def abstract(address: str) -> str:
    """Return the name of an address in Linux' abstract namespace.

    Example:
        >>> from freewheel.transport.unix import abstract
        >>> abstract("local://freewheel-1")
        '\\x00freewheel-1'
    """
    return "\0" + address.removeprefix(SCHEME)


def _cut(
    whole: memoryview, sizes: tuple[int, ...], steps: list[int] | tuple[int, ...]
) -> list[memoryview]:
    frames, at = [], 0
    for size, step in zip(sizes, steps, strict=True):
        frames.append(whole[at : at + size])
        at += step
    return frames
