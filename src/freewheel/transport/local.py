"""A link between processes of one host: Unix sockets, and shared memory for what is large.

No thread stands between sender and receiver, and a large message is copied once on each side. The
bytes that are counted are those that ZeroMQ would have sent.

Each link listens on a socket in Linux' abstract namespace, which leaves no file behind; only
processes of the same user are let in. To a peer there are two connections, as for ZeroMQ: control
(messages without tensors) and bulk.
"""

from __future__ import annotations

import math
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping

from freewheel.errors import ConfigError, LinkTimeoutError, WireError
from freewheel.transport.base import Message
from freewheel.transport.mailbox import MailboxLink
from freewheel.transport.ring import aligned
from freewheel.transport.schema import Limits
from freewheel.transport.unix import (
    IDENTITY_BYTES,
    PACKET_BYTES,
    SCHEME,
    Hello,
    ReceiveEnd,
    SendEnd,
    abstract,
)
from freewheel.transport.wire import RUN_ID_BYTES

_MAX_PEERS = 4096
#: A blocked sender looks at least this often, should the word that there is room be lost.
_LOOK_S = 0.02


class LocalLink(MailboxLink):
    """One process's end of a network of processes on this host. Linux only.

    Args:
        name: this process by role and rank, e.g. ``"stage 1"``.
        run_id: eight bytes, the same in all processes of the run; others are refused and counted.
        queue_messages: how many large transfers may wait for one peer.
        max_waiting_bytes: see ``MailboxLink``.
        limits: sizes of pieces and messages.

    Raises:
        ConfigError: a malformed name or run id.

    Example:
        >>> import torch
        >>> from freewheel.transport.base import Message
        >>> from freewheel.transport.local import LocalLink
        >>> with LocalLink("stage 0", b"run-0001") as a, LocalLink("stage 1", b"run-0001") as b:
        ...     a.connect({"stage 1": b.address})
        ...     a.send("stage 1", Message("forward", (torch.ones(2),)), timeout_s=5)
        ...     b.receive(kind="forward", sender="stage 0", timeout_s=5).tensors[0].tolist()
        [1.0, 1.0]
    """

    def __init__(
        self,
        name: str,
        run_id: bytes,
        *,
        queue_messages: int = 16,
        max_waiting_bytes: int = 1 << 30,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(name, max_waiting_bytes)
        if len(run_id) != RUN_ID_BYTES or not 0 < len(name.encode()) <= 200:
            raise ConfigError(
                f"a run id must be {RUN_ID_BYTES} bytes, got {len(run_id)}; a name 1 to 200 bytes, "
                f"got {name[:40]!r}"
            )
        self._limits = limits or Limits()
        self._run_id = run_id
        self._queue = queue_messages
        self._identity = os.urandom(IDENTITY_BYTES)
        # a whole queue of pieces, each with its header, and some long texts
        self._capacity = queue_messages * aligned(self._limits.piece_bytes + 4096)
        self._capacity += 4 * aligned(self._limits.max_text_bytes)
        self._peers: dict[str, str] = {}
        self._ways: dict[tuple[str, bool], SendEnd] = {}
        self._ends: dict[int, ReceiveEnd] = {}
        self._current: dict[str, bytes] = {}
        self._superseded: deque[bytes] = deque(maxlen=_MAX_PEERS)
        self._packet = memoryview(bytearray(PACKET_BYTES))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._address = f"{SCHEME}freewheel-{os.urandom(12).hex()}"
        self._listener.bind(abstract(self._address))
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._all, self._urgent = select.epoll(), select.epoll()
        for poller in (self._all, self._urgent):
            poller.register(self._listener, select.EPOLLIN)

    @property
    def address(self) -> str:
        """``local://NAME``, the name of a socket in the abstract namespace."""
        return self._address

    def connect(self, peers: Mapping[str, str]) -> None:
        """Make peers known by name, as ``Link.connect`` says; connections open at the first send.

        Raises:
            ConfigError: an address that is not of this host's processes.
        """
        self._check_open()
        for name, address in peers.items():
            if not address.startswith(SCHEME):
                raise ConfigError(
                    f"{self.name} reaches processes of this host only, and {name} is at {address}; "
                    'set link.carrier = "zeromq" in all of them'
                )
            if self._peers.get(name, address) != address:
                for bulk in (False, True):
                    self._drop(name, bulk)
            self._peers[name] = address

    def send(self, to: str, message: Message, *, timeout_s: float = 60.0) -> None:
        """Hand a message over, as ``Link.send`` says."""
        self._check_open()
        if to not in self._peers:
            self._raise_unknown(to, self._peers)
        deadline, bulk = time.monotonic() + timeout_s, bool(message.tensors)
        while True:
            way = self._way(to, bulk)
            if way is None:
                self._block(to, bulk, message, deadline, timeout_s)
                continue
            try:
                encoded = way.encoder.encode(message)
                for piece in encoded.pieces:
                    while not way.offer(piece):
                        self._block(to, bulk, message, deadline, timeout_s)
                break
            except (BrokenPipeError, ConnectionResetError):
                self._drop(to, bulk)  # whoever is there next has had nothing: start again
            except BaseException:
                way.encoder.forget()
                raise
        self.traffic.sent(to, encoded.num_bytes)

    def close(self, linger_s: float = 1.0) -> None:
        """Free sockets and memory, as ``Link.close`` says."""
        if self._closed:
            return
        self._closed = True
        for way in self._ways.values():
            way.close()
        for end in self._ends.values():
            end.close()
        self._ways.clear()
        self._ends.clear()
        for poller in (self._all, self._urgent):
            poller.close()
        self._listener.close()
        self._mailbox.clear()

    def _way(self, to: str, bulk: bool) -> SendEnd | None:
        """Return the way to a peer; None where nobody is there."""
        way = self._ways.get((to, bulk))
        if way is None:
            hello = Hello(bulk, self._run_id, self._identity, self.name)
            try:
                way = SendEnd(hello, self._peers[to], self._capacity, self._queue, self._limits)
            except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
                return None
            self._ways[to, bulk] = way
        return way

    def _drop(self, to: str, bulk: bool) -> None:
        way = self._ways.pop((to, bulk), None)
        if way is not None:
            way.close()

    def _block(
        self, to: str, bulk: bool, message: Message, deadline: float, timeout_s: float
    ) -> None:
        """Wait for room, taking in what comes meanwhile, so that two that send to each other go on.

        Raises:
            Interrupted: a message came that ends any wait.
        """
        left_s = deadline - time.monotonic()
        way = self._ways.get((to, bulk))
        if left_s <= 0:
            why = (
                "its queue stayed full; see whether it receives"
                if way is not None
                else "it could not be reached; see whether it was started and is alive"
            )
            raise LinkTimeoutError(
                f"{self.name} could not hand {message.kind!r} to {to} "
                f"({self._peers[to]}) within {timeout_s:.3g} s: {why}, or raise the timeout"
            )
        poller = select.poll()
        poller.register(self._urgent if self._mailbox.full else self._all, select.POLLIN)
        if way is not None:
            way.ring.wait()
            poller.register(way.socket, select.POLLIN)
        for descriptor, _ in poller.poll(math.ceil(1000 * min(left_s, _LOOK_S))):
            if way is not None and descriptor == way.socket.fileno():
                way.hear_of_room()
            else:
                self._wait(0.0)
        self._raise_interrupts()

    def _wait(self, timeout_s: float) -> None:
        poller = self._urgent if self._mailbox.full else self._all
        ready = [descriptor for descriptor, _ in poller.poll(timeout_s)]
        if self._listener.fileno() in ready:
            self._welcome()
        found = [self._ends[descriptor] for descriptor in ready if descriptor in self._ends]
        for end in [end for end in found if not end.hello.bulk] or found:
            self._read(end)

    def _welcome(self) -> None:
        """Let in whoever knocks, if it is a process of the same user."""
        try:
            found, _ = self._listener.accept()
        except BlockingIOError:
            return
        user = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
        if user != os.geteuid() or len(self._ends) >= _MAX_PEERS:
            self._refuse("it is of another user, or there are too many senders", "a stranger")
            found.close()
            return
        self._ends[found.fileno()] = ReceiveEnd(found)
        for poller in (self._all, self._urgent):
            poller.register(found, select.EPOLLIN)

    def _read(self, end: ReceiveEnd) -> None:
        """Take one packet in."""
        try:
            if end.decoder is None:
                self._meet(end)
                return
            count = end.socket.recv_into(self._packet)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count or end.decoder is None:
            self._forget(end)
            return
        try:
            frames, in_ring = end.frames(self._packet[:count])
        except WireError as error:
            self._refuse(str(error), end.hello.name)
            return
        self._take_in(end.hello.name, end.decoder, frames)
        if in_ring:
            del frames
            end.give_back()

    def _meet(self, end: ReceiveEnd) -> None:
        """Take a hello in."""
        try:
            hello = end.meet(self._run_id, self._limits)
            if hello is not None and hello.identity in self._superseded:
                raise WireError("a newer process has its name")
        except WireError as error:
            self._refuse(str(error), ascii(end.hello.name[:40]))
            self._forget(end)
            return
        if hello is None:
            self._forget(end)
            return
        before = self._current.get(hello.name, hello.identity)
        self._current[hello.name] = hello.identity
        if before != hello.identity:
            self._superseded.append(before)
            for other in [o for o in self._ends.values() if o.hello.identity == before]:
                self._forget(other)
        if hello.bulk:
            self._urgent.unregister(end.socket)

    def _forget(self, end: ReceiveEnd) -> None:
        """Let go of a connection whose other end has gone."""
        if self._ends.pop(end.socket.fileno(), None) is not None:
            self._all.unregister(end.socket)
            if end.decoder is None or not end.hello.bulk:
                self._urgent.unregister(end.socket)
            end.close()
