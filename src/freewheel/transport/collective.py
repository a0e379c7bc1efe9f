"""A link over the sends and receives of a ``torch.distributed`` process group.

For processes that have a group anyway, such as GPUs on one fabric. Its limits are the group's:

- Who is in it is fixed at the start: no process joins later, none comes back after it died, and a
  peer that died is a ``LinkError``, not something to wait for.
- gloo's send returns only when the receiver has posted, a receive cannot be polled, and one
  timeout closes all pairs of the group. So each peer has threads that wait without a timeout, two
  for messages with tensors and two for those without, and deadlines are kept in front of them.
- On gloo (CPU) the contract suite runs. On NCCL it has the right shape (a receive names its
  source, buffers are put on ``device``) but has not been tried.

Bytes are counted as for ZeroMQ: gloo's own headers, which it does not tell, would differ a little.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import (  # type: ignore[attr-defined]  # public, not re-exported
    FileStore,
    ProcessGroupGloo,
)

from freewheel.errors import ConfigError, LinkError, LinkTimeoutError, WireError, nearest
from freewheel.transport.base import Message
from freewheel.transport.mailbox import MailboxLink
from freewheel.transport.schema import Buffer, Limits
from freewheel.transport.wire import Decoder, Encoder

_NAME, _TRANSFER, _BYE = 0, 1, 2
_MAX_FRAMES = 4096
_FOREVER = timedelta(days=365)


def gloo_group(
    store: Path, rank: int, world_size: int, timeout_s: float = 60.0, interface: str = "lo"
) -> Any:
    """Make a gloo process group that listens on one interface only, and meets over a file.

    Args:
        store: a path that all ranks share; must not exist before the first comes.
        rank: of this process.
        world_size: processes in the group.
        timeout_s: how long to wait for the others.
        interface: loopback by default; a network interface only where you trust the network.

    Raises:
        LinkTimeoutError: the others did not come.
    """
    # Not public, but the only way to name an interface for one group and not by the environment.
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in its stubs
    options._devices = [ProcessGroupGloo.create_device(interface=interface)]
    options._timeout = timedelta(seconds=timeout_s)
    try:
        return ProcessGroupGloo(FileStore(str(store), world_size), rank, world_size, options)
    except RuntimeError as error:
        raise LinkTimeoutError(
            f"rank {rank} of {world_size} did not meet the others at {store} within "
            f"{timeout_s:.3g} s; see whether all were started, and that the file is new ({error})"
        ) from error


class _Lane:
    """One sort of messages, one peer: two queues, and what has become of the other side."""

    def __init__(self, rank: int, bulk: bool, encoder: Encoder) -> None:
        self.rank = rank
        self.bulk = bulk
        self.encoder = encoder
        self.leaving: deque[list[Buffer]] = deque()
        self.come: deque[list[Buffer]] = deque()
        self.name = ""
        self.decoder: Decoder | None = None
        self.lost = ""
        self.threads: list[threading.Thread] = []


class CollectiveLink(MailboxLink):
    """One rank's end of a network within a process group.

    Args:
        name: this process by role and rank, e.g. ``"stage 1"``.
        run_id: eight bytes, the same in all processes of the run.
        group: a process group used by nobody else, e.g. of ``gloo_group``; closed with the link.
        device: where the group wants its buffers: ``"cpu"`` for gloo, ``"cuda"`` for NCCL.
        queue_messages: how many transfers may wait for one peer, at each end.
        max_waiting_bytes: see ``MailboxLink``.
        limits: sizes of pieces and messages.

    Example::

        group = gloo_group(run_dir / "store", rank=1, world_size=2)
        link = CollectiveLink("stage 1", run_id, group)
        link.connect({"stage 0": "rank://0"})
    """

    def __init__(
        self,
        name: str,
        run_id: bytes,
        group: Any,
        *,
        device: str = "cpu",
        queue_messages: int = 16,
        max_waiting_bytes: int = 1 << 30,
        limits: Limits | None = None,
    ) -> None:
        super().__init__(name, max_waiting_bytes)
        self._run_id = run_id
        self._limits = limits or Limits()
        self._group = group
        self._device = torch.device(device)
        self._queue_messages = queue_messages
        self._rank: int = group.rank()
        self._ranks: dict[str, int] = {}
        self._changed = threading.Condition()
        self._lanes: dict[tuple[int, bool], _Lane] = {}
        self._turn: deque[_Lane] = deque()
        for rank in range(group.size()):
            if rank != self._rank:
                for bulk in (False, True):
                    self._open(_Lane(rank, bulk, Encoder(run_id, self._limits)))

    @property
    def address(self) -> str:
        """The rank in the group, as ``rank://1``."""
        return f"rank://{self._rank}"

    def connect(self, peers: Mapping[str, str]) -> None:
        """Say which name has which rank; every rank's sockets are open since the group was made.

        Raises:
            ConfigError: an address that is no rank of the group.
        """
        self._check_open()
        known = {f"rank://{rank}": rank for rank in range(self._group.size())}
        for name, address in peers.items():
            if address not in known:
                raise ConfigError(
                    f"address {address!r} of {name} is not in the group{nearest(address, known)}"
                )
            self._ranks[name] = known[address]

    def send(self, to: str, message: Message, *, timeout_s: float = 60.0) -> None:
        """Hand a message over, as ``Link.send`` says."""
        self._check_open()
        if to not in self._ranks or self._ranks[to] == self._rank:
            others = {name: rank for name, rank in self._ranks.items() if rank != self._rank}
            self._raise_unknown(to, others)
        deadline = time.monotonic() + timeout_s
        lane = self._lanes[self._ranks[to], bool(message.tensors)]
        encoded = lane.encoder.encode(message)
        try:
            with self._changed:
                for piece in encoded.pieces:
                    while len(lane.leaving) >= self._queue_messages and not lane.lost:
                        self._block(to, message, deadline, timeout_s)
                    if lane.lost:
                        raise LinkError(
                            f"{self.name} lost {to}: {lane.lost}; a process group cannot be joined "
                            "again: start a new run, or use the zeromq link"
                        )
                    lane.leaving.append(piece)
                    self._changed.notify_all()
        except BaseException:
            lane.encoder.forget()
            raise
        self.traffic.sent(to, encoded.num_bytes)

    def close(self, linger_s: float = 1.0) -> None:
        """Flush and take leave of all peers, for at most ``linger_s``.

        Threads that wait for a peer which does not take its leave end with the process.
        """
        if self._closed:
            return
        deadline = time.monotonic() + linger_s
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for lane in self._lanes.values():
            for thread in lane.threads:
                thread.join(max(deadline - time.monotonic(), 0.0))
        self._mailbox.clear()
        self._group = None

    def _open(self, lane: _Lane) -> None:
        self._lanes[lane.rank, lane.bulk] = lane
        self._turn.append(lane)
        for work in (self._send_all, self._receive_all):
            # Each holds the group itself, so that the last to end frees it.
            thread = threading.Thread(target=work, args=(lane, self._group), daemon=True)
            lane.threads.append(thread)
            thread.start()

    def _block(self, to: str, message: Message, deadline: float, timeout_s: float) -> None:
        """Wait for room, taking in what comes meanwhile, so that two that send go on."""
        while self._take_next():
            pass
        self._raise_interrupts()
        if not self._changed.wait(max(deadline - time.monotonic(), 0.0)):
            raise LinkTimeoutError(
                f"{self.name} could not hand {message.kind!r} to {to} within {timeout_s:.3g} s: "
                f"its queue of {self._queue_messages} stayed full; see whether it receives, "
                "or raise the timeout"
            )

    def _wait(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(self._take_next, timeout_s)

    def _take_next(self) -> bool:
        """Take one transfer in, control before bulk, peers in turn."""
        for bulk in (False, True):
            for lane in self._turn:
                if lane.bulk == bulk and lane.come and not (bulk and self._mailbox.full):
                    self._turn.remove(lane)
                    self._turn.append(lane)
                    if lane.decoder is None:
                        lane.decoder = Decoder(self._run_id, lane.name, self._limits)
                    self._take_in(lane.name, lane.decoder, lane.come.popleft())
                    self._changed.notify_all()
                    return True
        return False

    def _send_all(self, lane: _Lane, group: Any) -> None:
        """Send what is queued, and a farewell in the end: the work of a lane's first thread."""
        try:
            self._put(group, lane, _NAME, [self.name.encode()])
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: lane.leaving or self._closed)
                    frames = lane.leaving.popleft() if lane.leaving else None
                    self._changed.notify_all()
                if frames is None:
                    self._put(group, lane, _BYE, [])
                    return
                self._put(group, lane, _TRANSFER, frames)
        except RuntimeError as error:
            self._lose(lane, error)

    def _receive_all(self, lane: _Lane, group: Any) -> None:
        """Queue what comes, until a farewell: the work of a lane's second thread."""
        try:
            while True:
                what, frames = self._get(group, lane)
                if what == _BYE:
                    return
                with self._changed:
                    if what == _NAME:
                        lane.name = bytes(frames[0]).decode(errors="replace")
                        continue
                    self._changed.wait_for(
                        lambda: len(lane.come) < self._queue_messages or self._closed
                    )
                    # After close the rest is taken and dropped, so that the sender can end too.
                    if not self._closed:
                        lane.come.append(frames)
                        self._changed.notify_all()
        except (RuntimeError, WireError) as error:
            self._lose(lane, error)

    def _lose(self, lane: _Lane, error: Exception) -> None:
        with self._changed:
            lane.lost = str(error).splitlines()[0][:200]
            self._changed.notify_all()

    def _put(self, group: Any, lane: _Lane, what: int, frames: list[Buffer]) -> None:
        """Send a prelude (what, number of frames, bytes in all), their sizes, and the bytes."""
        sizes = [len(frame) for frame in frames]
        prelude = torch.tensor([what, len(frames), sum(sizes)], dtype=torch.int64)
        self._send(group, lane, prelude)
        if frames:
            self._send(group, lane, torch.tensor(sizes, dtype=torch.int64))
            whole = torch.frombuffer(bytearray().join(frames), dtype=torch.uint8)
            self._send(group, lane, whole)

    def _get(self, group: Any, lane: _Lane) -> tuple[int, list[Buffer]]:
        prelude = self._receive(group, lane, torch.empty(3, dtype=torch.int64))
        what, num_frames, total = prelude.tolist()
        if not num_frames:
            return what, []
        if not 0 < num_frames <= _MAX_FRAMES or not 0 < total <= self._limits.max_message_bytes:
            raise WireError(f"{num_frames} frames of {total} bytes together break the limits")
        sizes = self._receive(group, lane, torch.empty(num_frames, dtype=torch.int64)).tolist()
        whole = self._receive(group, lane, torch.empty(total, dtype=torch.uint8)).numpy().data
        if min(sizes) < 0 or sum(sizes) != total:
            raise WireError(f"frames of {sum(sizes)} bytes, {total} were announced")
        frames: list[Buffer] = []
        for size in sizes:
            frames.append(whole[:size])
            whole = whole[size:]
        return what, frames

    def _send(self, group: Any, lane: _Lane, data: Tensor) -> None:
        group.send([data.to(self._device)], lane.rank, int(lane.bulk)).wait(_FOREVER)

    def _receive(self, group: Any, lane: _Lane, data: Tensor) -> Tensor:
        here = data.to(self._device)
        group.recv([here], lane.rank, int(lane.bulk)).wait(_FOREVER)
        return here.cpu()
