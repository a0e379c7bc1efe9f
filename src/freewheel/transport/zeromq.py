"""A link over TCP by ZeroMQ: between processes of one machine, or of several.

Each link listens on two ROUTER sockets, control (messages without tensors) and bulk, so that a
large tensor holds no small message up; and opens a DEALER to each of a peer's two when it first
sends there. A DEALER has a queue of its own per peer, so a full one blocks only who sends there.

What a peer that dies had in flight to it is lost. When it is back, at the old address or at a new
one given to ``connect``, sending goes on, and every schema is announced again.

Not counted: the handshake of a connection, and heartbeats (a few bytes a second).
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Mapping

import zmq
from zmq.utils.monitor import recv_monitor_message

from freewheel.errors import ConfigError, LinkError, LinkTimeoutError
from freewheel.transport import endpoints
from freewheel.transport.base import Message
from freewheel.transport.mailbox import MailboxLink
from freewheel.transport.schema import Buffer, Limits
from freewheel.transport.wire import RUN_ID_BYTES, Decoder, Encoder

#: A routing id is this letter (it may not start with a zero byte), the run id, four random bytes
#: that tell a restarted process from the one before, and the name.
_MARK = b"F"
_NAME_AT = len(_MARK) + RUN_ID_BYTES + 4
_MAX_SENDERS = 4096
#: Small messages that may wait for one peer, at each end.
_QUEUE_CONTROL = 1000

# As plain numbers: arithmetic on the enumerations takes longer than a system call.
_READABLE, _NOBLOCK, _MORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.SNDMORE)
#: Frames from here on are sent without a copy; for smaller ones that costs more than it saves.
_ZERO_COPY_BYTES = 1048576


class _Lane:
    """The way to one socket of one peer, with the schemas that it has been told."""

    def __init__(self, socket: zmq.Socket[bytes], encoder: Encoder) -> None:
        self.socket = socket
        self.encoder = encoder
        self.reached = False
        self.breaks = 0
        events = zmq.Event.HANDSHAKE_SUCCEEDED | zmq.Event.DISCONNECTED
        self._monitor = socket.get_monitor_socket(events)

    def look(self) -> None:
        """Notice whether the connection came or broke: who is there afterwards knows no schema."""
        while int(self._monitor.get(zmq.EVENTS)) & _READABLE:
            event = recv_monitor_message(self._monitor)["event"]
            if event == zmq.Event.DISCONNECTED:
                self.encoder.forget()
                self.breaks += 1
            self.reached = event == zmq.Event.HANDSHAKE_SUCCEEDED

    def close(self, linger_s: float) -> None:
        """Close the socket; the context flushes for at most ``linger_s``."""
        self.socket.disable_monitor()
        self._monitor.close(0)
        self.socket.close(math.ceil(linger_s * 1000))


class ZmqLink(MailboxLink):
    """One process's end of a network of TCP connections.

    Args:
        name: this process by role and rank, e.g. ``"stage 1"``.
        run_id: eight bytes, the same in all processes of the run; others are refused and counted.
        bind: where to listen: ``tcp://HOST:*`` for free ports, ``tcp://HOST:P`` for P and P + 1,
            ``tcp://HOST:P,Q``. Only loopback, unless ``insecure``.
        advertise: the host that others should use, where it is not the one bound (``0.0.0.0``).
        insecure: allow addresses beyond this machine, although links have no keys.
        queue_messages: how many transfers with tensors may wait for one peer, at each end.
        max_waiting_bytes: see ``MailboxLink``.
        heartbeat_s: how often a control connection is tried; given up after four times that.
        limits: sizes of pieces and messages.

    Raises:
        ConfigError: a malformed address, or one beyond this machine without ``insecure``.
        LinkError: the port is taken.

    Example:
        >>> import torch
        >>> from freewheel.transport.base import Message
        >>> from freewheel.transport.zeromq import ZmqLink
        >>> with ZmqLink("stage 0", b"run-0001") as a, ZmqLink("stage 1", b"run-0001") as b:
        ...     a.connect({"stage 1": b.address})
        ...     a.send("stage 1", Message("forward", (torch.ones(2),)), timeout_s=5)
        ...     b.receive(kind="forward", sender="stage 0", timeout_s=5).tensors[0].tolist()
        [1.0, 1.0]
    """

    def __init__(
        self,
        name: str,
        run_id: bytes,
        bind: str = "tcp://127.0.0.1:*",
        *,
        advertise: str | None = None,
        insecure: bool = False,
        queue_messages: int = 16,
        max_waiting_bytes: int = 1 << 30,
        heartbeat_s: float = 5.0,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(name, max_waiting_bytes)
        self._limits = limits or Limits()
        self._run_id = run_id
        self._insecure = insecure
        self._queue_messages = queue_messages
        self._heartbeat_ms = math.ceil(heartbeat_s * 1000)
        self._routing_id = _MARK + run_id + os.urandom(4) + name.encode()
        wanted = endpoints.parse(bind)
        endpoints.check_loopback(wanted, insecure)
        if len(run_id) != RUN_ID_BYTES or len(self._routing_id) > 255 or not name:
            raise ConfigError(
                f"a run id must be {RUN_ID_BYTES} bytes, got {len(run_id)}; a name 1 to "
                f"{255 - _NAME_AT} bytes, got {name[:40]!r}"
            )
        self._peers: dict[str, endpoints.Endpoint] = {}
        self._lanes: dict[tuple[str, bool], _Lane] = {}
        self._decoders: dict[tuple[bytes, bool], Decoder] = {}
        self._current: dict[str, bytes] = {}
        self._superseded: deque[bytes] = deque(maxlen=_MAX_SENDERS)
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, 16_384)
        try:
            self._control = self._listen(wanted.url(wanted.control), bulk=False)
            self._bulk = self._listen(wanted.url(wanted.bulk), bulk=True)
        except BaseException:
            self._context.destroy(0)
            raise
        ports = [_port(socket) for socket in (self._control, self._bulk)]
        self._endpoint = endpoints.Endpoint(advertise or wanted.host, *ports)
        self._incoming = zmq.Poller()
        self._incoming.register(self._control, zmq.POLLIN)
        self._incoming.register(self._bulk, zmq.POLLIN)

    @property
    def address(self) -> str:
        """Both endpoints in one string: ``tcp://HOST:CONTROL,BULK``."""
        return self._endpoint.address

    def connect(self, peers: Mapping[str, str]) -> None:
        """Make peers known by name, as ``Link.connect`` says; the sockets open at the first send.

        Raises:
            ConfigError: an address is malformed, or beyond this machine without ``insecure``.
        """
        self._check_open()
        for name, address in peers.items():
            endpoint = endpoints.parse(address)
            endpoints.check_loopback(endpoint, self._insecure)
            if self._peers.get(name, endpoint) != endpoint:
                for lane in [self._lanes.pop((name, bulk), None) for bulk in (False, True)]:
                    if lane is not None:
                        lane.close(0)
            self._peers[name] = endpoint

    def send(self, to: str, message: Message, *, timeout_s: float = 60.0) -> None:
        """Hand a message over, as ``Link.send`` says."""
        self._check_open()
        lane = self._lane(to, bool(message.tensors))
        deadline = time.monotonic() + timeout_s
        lane.look()
        try:
            handed_over = False
            while not handed_over:
                encoded, breaks = lane.encoder.encode(message), lane.breaks
                for piece in encoded.pieces:
                    while not self._offer(lane, piece):
                        self._block(to, lane, message, deadline, timeout_s)
                    # Whoever is there after a break has not had the first pieces: start again.
                    if lane.breaks != breaks:
                        break
                else:
                    handed_over = True
        except BaseException:
            lane.encoder.forget()
            raise
        self.traffic.sent(to, encoded.num_bytes)

    def close(self, linger_s: float = 1.0) -> None:
        """Flush for at most ``linger_s`` and free sockets and threads, as ``Link.close`` says."""
        if not self._closed:
            self._closed = True
            for lane in self._lanes.values():
                lane.close(linger_s)
            self._control.close(0)
            self._bulk.close(0)
            self._context.term()
            self._mailbox.clear()
            self._decoders.clear()

    def _socket(self, sort: int, bulk: bool) -> zmq.Socket[bytes]:
        """Make a socket with the settings common to all; keys will go here."""
        socket = self._context.socket(sort)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, self._queue_messages if bulk else _QUEUE_CONTROL)
        socket.set(zmq.RCVHWM, self._queue_messages if bulk else _QUEUE_CONTROL)
        socket.set(zmq.MAXMSGSIZE, self._limits.max_message_bytes)
        socket.set(zmq.TCP_KEEPALIVE, 1)
        socket.set(zmq.TCP_KEEPALIVE_IDLE, max(self._heartbeat_ms // 1000, 1))
        if not bulk:
            # Not on bulk: there a heartbeat would wait behind what a slow reader does not take,
            # and the connection be given up with all that is in it. TCP's own are no part of that.
            socket.set(zmq.HEARTBEAT_IVL, self._heartbeat_ms)
            socket.set(zmq.HEARTBEAT_TIMEOUT, 4 * self._heartbeat_ms)
        return socket

    def _listen(self, url: str, bulk: bool) -> zmq.Socket[bytes]:
        socket = self._socket(zmq.ROUTER, bulk)
        socket.set(zmq.IPV6, "[" in url)
        try:
            socket.bind(url)
        except zmq.ZMQError as error:
            raise LinkError(
                f"{self.name} cannot listen on {url}: {error.strerror}; end the program that uses "
                "the port (ss -ltnp shows it), name another, or use tcp://127.0.0.1:* for a free "
                "one; the host must be an address of this machine"
            ) from error
        return socket

    def _lane(self, to: str, bulk: bool) -> _Lane:
        lane = self._lanes.get((to, bulk))
        if lane is None:
            if to not in self._peers:
                self._raise_unknown(to, self._peers)
            endpoint = self._peers[to]
            socket = self._socket(zmq.DEALER, bulk)
            socket.set(zmq.ROUTING_ID, self._routing_id)
            # Queue only for a peer that is there: nothing is kept for one that never comes.
            socket.set(zmq.IMMEDIATE, 1)
            socket.set(zmq.RECONNECT_IVL, 20)
            socket.set(zmq.RECONNECT_IVL_MAX, 1000)
            socket.set(zmq.IPV6, "[" in endpoint.host)
            lane = _Lane(socket, Encoder(self._run_id, self._limits))
            socket.connect(endpoint.url(endpoint.bulk if bulk else endpoint.control))
            self._lanes[to, bulk] = lane
        return lane

    @staticmethod
    def _offer(lane: _Lane, frames: list[Buffer]) -> bool:
        """Put one transfer into the peer's queue, if it has room."""
        last = len(frames) - 1
        try:
            for place, frame in enumerate(frames):
                flags = _NOBLOCK if place == last else _NOBLOCK | _MORE
                # Without a copy ZeroMQ keeps the tensors alive until their bytes have left.
                lane.socket.send(frame, flags, copy=len(frame) < _ZERO_COPY_BYTES)
        except zmq.Again:
            return False
        return True

    def _block(
        self, to: str, lane: _Lane, message: Message, deadline: float, timeout_s: float
    ) -> None:
        """Wait for room, taking in what comes meanwhile, so that two that send to each other go on.

        Raises:
            Interrupted: a message came that ends any wait.
        """
        left_s = deadline - time.monotonic()
        lane.look()
        if left_s <= 0:
            why = (
                "its queue stayed full; see whether it receives"
                if lane.reached
                else "it could not be reached; see whether it was started and is alive"
            )
            raise LinkTimeoutError(
                f"{self.name} could not hand {message.kind!r} to {to} "
                f"({self._peers[to].address}) within {timeout_s:.3g} s: {why}, or raise the timeout"
            )
        poller = zmq.Poller()
        poller.register(lane.socket, zmq.POLLOUT)
        poller.register(self._control, zmq.POLLIN)
        if not self._mailbox.full:
            poller.register(self._bulk, zmq.POLLIN)
        ready = dict(poller.poll(math.ceil(left_s * 1000)))
        for socket in (self._control, self._bulk):
            if socket in ready:
                self._read(socket)
        self._raise_interrupts()

    def _wait(self, timeout_s: float) -> None:
        if self._mailbox.full:
            ready = bool(self._control.poll(math.ceil(timeout_s * 1000)))
            sockets = [self._control] if ready else []
        else:
            sockets = [s for s, _ in self._incoming.poll(math.ceil(timeout_s * 1000))]
        if self._control in sockets:
            self._read(self._control)
        elif sockets:
            self._read(self._bulk)

    def _read(self, socket: zmq.Socket[bytes]) -> None:
        """Take one transfer in."""
        identity = socket.recv(_NOBLOCK)
        frames = [socket.recv(_NOBLOCK, copy=False)]
        while frames[-1].more:
            frames.append(socket.recv(_NOBLOCK, copy=False))
        decoder = self._decoder(identity, socket is self._bulk)
        if decoder is not None:
            sender = identity[_NAME_AT:].decode(errors="replace")
            self._take_in(sender, decoder, [frame.buffer for frame in frames])

    def _decoder(self, identity: bytes, bulk: bool) -> Decoder | None:
        """Return what decodes this sender's frames; None, and counted, where it is not of us."""
        decoder = self._decoders.get((identity, bulk))
        if decoder is not None:
            return decoder
        name = identity[_NAME_AT:].decode(errors="replace")
        if not identity.startswith(_MARK + self._run_id) or not name:
            other = identity[len(_MARK) : len(_MARK) + RUN_ID_BYTES].hex()
            self._refuse(f"it is of another run, {other}", ascii(name[:40]))
            return None
        if identity in self._superseded or len(self._decoders) >= _MAX_SENDERS:
            self._refuse("a newer process has its name, or there are too many senders", name)
            return None
        before = self._current.get(name)
        if before not in (None, identity):
            self._superseded.append(before)
            self._decoders.pop((before, False), None)
            self._decoders.pop((before, True), None)
        self._current[name] = identity
        decoder = self._decoders[identity, bulk] = Decoder(self._run_id, name, self._limits)
        return decoder


def _port(socket: zmq.Socket[bytes]) -> int:
    url = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return int(url.rpartition(":")[2])
