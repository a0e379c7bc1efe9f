"""What a server does when an order says so: fold, reply, forget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from freewheel.monitors.dual_prediction import ServerEnd
from freewheel.protocols.replicas import Kind
from freewheel.protocols.watch import Predicted, Watch
from freewheel.runtime.mail import Mail
from freewheel.runtime.servers.buffers import MeanBuffers
from freewheel.runtime.servers.coding import Coding
from freewheel.runtime.servers.sequencer import Order
from freewheel.runtime.servers.served_part import ServedPart, combined
from freewheel.transport.base import EVALUATE, Interrupted, Message

#: Of one worker's refused pushes so many are told; all are counted.
_MAX_TOLD = 10


class Held:
    """A push as one server holds it until the order for it comes."""

    __slots__ = ("absent", "kind", "options", "steps", "vector")

    def __init__(self, message: Message, steps: int) -> None:
        meta = message.meta
        self.vector = message.tensors[0]
        self.absent: frozenset[int] = frozenset(meta.get("absent", ()))
        self.steps = steps
        self.kind = message.tree
        self.options: Sequence[Mapping[str, Any]] = meta.get("options", ())


class Hands:
    """Carries orders out for one server.

    Args:
        mail: to workers and other servers.
        rank: of this server.
        part: what it holds.
        kind: what pushes are.
        schedule: of the part's optimizer, or None.
        num_workers: initial ones; so many batches are one step of the schedule.
        buffers: the model's initial ones, for the server that keeps them.
        clip_norm: clip each folded gradient of the whole model to this norm.
        others: names of the other servers.
        codings: makes the codecs of pushes from, and pulls to, a worker.
        watch: what the protocol needs measured.
    """

    def __init__(
        self,
        mail: Mail,
        rank: int,
        part: ServedPart,
        kind: Kind,
        schedule: Any,
        num_workers: int,
        buffers: Sequence[Tensor],
        clip_norm: float | None,
        others: Sequence[str],
        codings: Callable[[int], tuple[Coding, Coding]],
        watch: Watch | None = None,
    ) -> None:
        self.mail, self.rank, self.part, self.kind = mail, rank, part, kind
        self.held: dict[tuple[int, int], Held] = {}
        self.gone: set[int] = set()
        self.noticed: list[int] = []
        self.stopping = False
        self.version = 0
        self.schedule, self._num_workers = schedule, num_workers
        self._batches = 1
        self._buffers = MeanBuffers(buffers)
        self._clip_norm, self._others = clip_norm, list(others)
        self._wants_final: dict[int, bool] = {}
        self._steps = self._rounds = 0
        self._clocks: dict[int, int] = {}
        self._refused: Counter[int] = Counter()
        self._snapshot: tuple[int, Tensor | None] = (-1, None)
        self._codings = {worker: codings(worker) for worker in range(num_workers)}
        self._ends: dict[int, ServerEnd] = {}
        self._watch = watch
        self._meet(part.snapshot() if isinstance(watch, Predicted) else None)

    def begin_from(self, worker: str) -> None:
        """Take one worker's parameters and buffers as the initial ones."""
        message = self.mail.receive("initial", worker)
        vector, *buffers = message.tensors
        self.part.load(vector)
        self._buffers = MeanBuffers(buffers)
        self._meet(None)  # what the others have made is not known here

    def _meet(self, state: Tensor | None) -> None:
        if isinstance(self._watch, Predicted):
            end = partial(ServerEnd, self._watch.predictor, self._watch.tolerance, state)
            self._ends = {worker: end() for worker in self._codings}

    @property
    def rounds(self) -> int:
        """Steps of the run so far: N batches of workers are one."""
        return self._steps // self._num_workers

    def go_on_from(self, clock: int, version: int, batches: int = 1) -> None:
        """Go on as if all workers had finished so many steps here; a step is now ``batches``."""
        self.version, self._rounds, self._steps = version, clock, clock * self._num_workers
        self._clocks = dict.fromkeys(range(self._num_workers), clock)
        self._batches = batches

    def opened(self, rank: int, message: Message) -> Message:
        """Return a worker's message with its vector decoded.

        Raises:
            WireError: the codecs of the two ends differ.
        """
        push, pull = self._codings[rank]
        pull.settle()  # who asks again has what it was sent before
        if message.kind != "push" or "parts" not in message.meta:
            return message
        vector, rest = push.decode(message.tensors, message.meta, self.part.size, self.part.dtype)
        return replace(message, tensors=(vector, *rest))

    def hold(self, rank: int, message: Message) -> None:
        """Keep a push until an order says what becomes of it."""
        before, self._clocks[rank] = self._clocks.get(rank, 0), message.clock
        self.held[rank, message.clock] = Held(message, message.clock - before)

    def misfit(self, message: Message) -> str:
        """Return why a push does not fit this run, or an empty string."""
        vector = message.tensors[0] if message.tensors else torch.empty(0)
        # a worker sends nothing where it has no samples, or knows that values are not finite
        bad = message.meta["e"].get("non_finite", 0.0)
        predicted = self._ends and message.tree == "predicted"
        size = self.part.size if message.num_samples and not (bad or predicted) else 0
        if message.tree != self.kind and not predicted:
            return f"it holds {message.tree!r}, and the protocol folds {self.kind!r}"
        if vector.shape != (size,) or vector.dtype != self.part.dtype:
            return (
                f"its vector is {tuple(vector.shape)} of {vector.dtype}, and this server's part is "
                f"({size},) of {self.part.dtype}; all processes must build the same model"
            )
        if not self._buffers.fits(message.tensors[1:]):
            return "its buffers are not shaped as the model's"
        return ""

    def refuse(self, rank: int, clock: int, why: str) -> None:
        """Tell a worker that its push does not fit."""
        self.tell_refused(rank, clock, why)
        self._send(rank, Message("refused", clock=clock, meta={"why": why}))

    def tell_refused(self, rank: int, clock: int, why: str) -> None:
        """Tell the person that a push was not folded, and whose it was."""
        self._refused[rank] += 1
        if self._refused[rank] > _MAX_TOLD:
            return
        about = {"event": "refused", "worker": f"worker {rank}", "step": clock, "reason": why}
        self.mail.tell("event", about)

    def take_buffers(self, rank: int, message: Message) -> None:
        """Keep the buffers that came with a push or a goodbye."""
        if self._buffers.fits(message.tensors[1:]):
            self._buffers.put(rank, message.tensors[1:])

    def mean_buffers(self) -> list[Tensor]:
        """Return the model's buffers: the mean over the workers."""
        return self._buffers.mean()

    def leaving(self, rank: int, wants_final: bool) -> None:
        """Note that a worker has left, and whether it wants the parameters of the end."""
        self._wants_final[rank] = wants_final

    def all_have_left(self) -> bool:
        """Whether every worker has said goodbye or died."""
        return len(self._wants_final.keys() | self.gone) >= self._num_workers

    def do(self, order: Order) -> None:
        """Carry out a fold, a drop, a grant, or the end of a worker."""
        if order.what == "fold":
            self._fold(order)
        elif order.what == "grant":
            self._grant(order)
        elif order.what == "drop":
            self._handled(self.held.pop(order.pushes[0]).steps)
        else:
            self.gone.add(order.rank)
            for name in [n for n in self.held if n[0] == order.rank and n[1] > order.clock]:
                del self.held[name]

    def send_for_reader(self, step: int, vector: Tensor) -> None:
        """Send this part to server 0, which scores it."""
        with self.mail.link.traffic.counting(EVALUATE):
            self.mail.send("server 0", Message("part", (vector,), clock=step))

    def farewell(self) -> None:
        """Let the workers that have left go, with the final parameters where they want them."""
        for rank, wants_final in self._wants_final.items():
            tensors: tuple[Tensor, ...] = ()
            if wants_final:
                moved = self._buffers.mean() if self._buffers.moved else []
                tensors = (self._current(), *moved)
            self._send(rank, Message("farewell", tensors, meta={"v": self.version}))

    def notice(self, interrupt: Interrupted) -> None:
        """Note that a worker has died; any other interrupt is raised again."""
        if interrupt.message.kind != "gone":
            raise interrupt
        self.noticed.append(int(interrupt.message.meta["rank"]))

    def _fold(self, order: Order) -> None:
        held = [self.held.pop(name) for name in order.pushes]
        for push in held:
            self.part.set_options(push.options)
        absent = frozenset.intersection(*(push.absent for push in held))
        vectors = [push.vector for push in held]
        if self._ends:
            vectors = [
                self._changed(*name, push, weight)
                for name, push, weight in zip(order.pushes, held, order.weights, strict=True)
            ]
        if self.kind == "gradient":
            self.part.set_gradient(combined(vectors, order.weights), absent)
            if self._clip_norm is not None:
                self.part.clip(self._clip_norm, self._squares_of_others(order.version))
            self.part.step()
            self._handled(sum(push.steps for push in held))
        else:
            self.part.move(vectors, order.weights, self.kind)
        self.version = order.version

    def _changed(self, rank: int, clock: int, push: Held, weight: float) -> Tensor:
        """Return the whole change of a worker, of which a push holds what was not predicted."""
        sent = push.vector if push.kind == self.kind else None
        change = self._ends[rank].fold(clock, sent, weight)
        return torch.zeros(self.part.size, dtype=self.part.dtype) if change is None else change

    def _squares_of_others(self, version: int) -> float | None:
        """Exchange squared norms with the other servers; None where there is no other."""
        if not self._others:
            return None
        own = self.part.squares()
        for server in self._others:
            self.mail.send(server, Message("squares", clock=version, meta={"sum": own}))
        total = 0.0
        for server in self._others:
            message = self.mail.receive("squares", server, version)
            total += float(message.meta["sum"])
        return total

    def _handled(self, steps: int) -> None:
        # A schedule counts steps of the whole run: N steps of workers, also of one whose share of
        # a round is empty, are one.
        self._steps += steps * self._batches
        while self.schedule is not None and self._rounds < self._steps // self._num_workers:
            self.schedule.step()
            self._rounds += 1

    def _grant(self, order: Order) -> None:
        meta: dict[str, Any] = {"v": order.version}
        if order.staleness >= 0:
            meta["s"] = order.staleness
        if self.stopping:
            meta["end"] = True
        if order.cause != order.rank:
            meta["for"] = order.cause
        if self.part.optimizer is not None and self.rank == 0:
            meta["lr"] = float(self.part.optimizer.param_groups[0]["lr"])
        tensors: tuple[Tensor, ...] | None = None
        if self._ends:
            tensors = self._not_predicted(order, meta)
        elif order.pull:
            tensors, said = self._codings[order.rank][1].encode(self._current())
            meta |= said
        if tensors is None:
            self._send(order.rank, Message("grant", clock=order.clock, meta=meta))
            return
        if self._buffers.moved:
            tensors = (*tensors, *self._buffers.mean())
        self._send(order.rank, Message("params", tensors, clock=order.clock, meta=meta))

    def _not_predicted(self, order: Order, meta: dict[str, Any]) -> tuple[Tensor, ...] | None:
        """Return what a worker that asks must be told, None where what it predicts holds."""
        end, pull = self._ends[order.rank], self._codings[order.rank][1]
        weight = end.take_weight()
        if weight is not None:
            meta["w"] = weight
        if not order.pull or end.holds(order.asked, state := self._current()):
            return None
        known = end.both.known(order.asked) if pull.coded else None
        if known is None:
            end.both.told(order.asked, state)
            return (state,)
        tensors, said, arrives = pull.round_trip(state - known)
        end.both.told(order.asked, end.both.corrected(order.asked, arrives))
        meta |= said
        return tensors

    def _current(self) -> Tensor:
        """Return the parameters of this version; copied once for all who pull it."""
        version, snapshot = self._snapshot
        if snapshot is None or version != self.version:
            self._snapshot = (-1, None)  # lets its memory be used again
            snapshot = self.part.snapshot()
            self._snapshot = (self.version, snapshot)
        return snapshot

    def _send(self, rank: int, message: Message) -> None:
        """Send to a worker, unless it has died; that may be heard of only while the send blocks."""
        while rank not in self.gone and rank not in self.noticed:
            try:
                self.mail.send(f"worker {rank}", message)
                return
            except Interrupted as interrupt:
                self.notice(interrupt)
