"""Collectives between the processes of a run, over ``torch.distributed``, with their bytes counted.

Gloo has no counters of its own, so what it sends is worked out: a ring all-reduce of B bytes among
N processes sends ``2 (N - 1) / N * B`` from each, a broadcast sends B to each but one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]  # public, not re-exported

from freewheel.errors import LinkError, LinkTimeoutError
from freewheel.transport.base import Traffic

#: How often the caller is told that a collective still waits.
TELL_EVERY_S = 1.0


class Group:
    """All processes of one role.

    Args:
        rank: of this process.
        world_size: processes in the group.
        store: a file that all can reach, gone once all have met; nothing listens for that.
        traffic: where bytes are counted, under the peer ``"all-reduce"``.
        timeout_s: how long a collective may take.
        interface: the network interface to use, by name.
        on_wait: called with the seconds that a collective has waited so far, once a second.

    Raises:
        LinkTimeoutError: a peer did not take part within ``timeout_s``.
        LinkError: a collective failed, most often because a peer died.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Path,
        traffic: Traffic,
        timeout_s: float,
        interface: str = "lo",
        on_wait: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._traffic = traffic
        self._timeout_s = timeout_s
        self._on_wait = on_wait
        # gloo would otherwise listen on whatever address the host name stands for
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        dist.init_process_group(
            "gloo",
            store=FileStore(str(store), world_size),
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        self._wait(dist.barrier(async_op=True), "rendezvous")
        if rank == 0:
            store.unlink(missing_ok=True)

    def sum(self, flat: Tensor) -> None:
        """Replace ``flat`` by the sum over all processes, the same bits on each.

        Args:
            flat: contiguous (gloo reduces others wrongly, in silence), any float dtype.
        """
        self._reduce(flat, dist.ReduceOp.SUM)

    def max(self, flat: Tensor) -> None:
        """Replace ``flat`` by the largest over all processes, element by element."""
        self._reduce(flat, dist.ReduceOp.MAX)

    def _reduce(self, flat: Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        if not flat.is_contiguous():
            raise LinkError("only contiguous tensors may be reduced; call .contiguous() first")
        self._wait(dist.all_reduce(flat, operation, async_op=True), "all-reduce")
        size = flat.numel() * flat.element_size()
        num_bytes = 2 * (self.world_size - 1) * size // self.world_size
        self._traffic.sent("all-reduce", num_bytes)
        self._traffic.received("all-reduce", num_bytes)

    def broadcast(self, flat: Tensor) -> None:
        """Replace ``flat`` by rank 0's."""
        self._wait(dist.broadcast(flat, src=0, async_op=True), "broadcast")
        size = flat.numel() * flat.element_size()
        if self.rank == 0:
            self._traffic.sent("all-reduce", size * (self.world_size - 1))
        else:
            self._traffic.received("all-reduce", size)

    def _wait(self, work: Any, what: str) -> None:
        start = time.monotonic()
        while True:
            try:
                work.wait(timedelta(seconds=TELL_EVERY_S))
                return
            except RuntimeError as error:
                waited = time.monotonic() - start
                if not work.is_completed() and waited < self._timeout_s + TELL_EVERY_S:
                    self._on_wait(waited)
                    continue
                if waited >= self._timeout_s:
                    raise LinkTimeoutError(
                        f"waited {waited:.0f} s for a peer in {what}; run.step_timeout_s allows "
                        f"{self._timeout_s:g}; raise it if a step may take longer"
                    ) from error
                raise LinkError(f"{what} failed: {error}") from error

    def close(self) -> None:
        """Leave the group."""
        if dist.is_initialized():
            dist.destroy_process_group()
