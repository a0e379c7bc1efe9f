"""The role of a server: it takes pushes in, puts them in order, and carries the orders out.

Server 0 leads: it hears from all servers which pushes they have, asks the protocol, and shares the
orders. With ``layout.consistency = "per_server"`` each server leads itself.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from freewheel.aggregation.tensors import num_non_finite
from freewheel.config import Config
from freewheel.errors import ConfigError, LinkTimeoutError, WireError
from freewheel.monitors.model_variance import read_report
from freewheel.protocols import Protocol
from freewheel.protocols.replicas import Push, Reported
from freewheel.protocols.watch import Variance
from freewheel.runtime.job import Job
from freewheel.runtime.mail import LONG_WAIT_S, Mail
from freewheel.runtime.memory import keep_freed_memory
from freewheel.runtime.recorder import Recorder
from freewheel.runtime.role import Wish
from freewheel.runtime.servers.arrivals_file import ArrivalsFile
from freewheel.runtime.servers.coding import codings_of
from freewheel.runtime.servers.exchange import PULLS
from freewheel.runtime.servers.hands import Hands
from freewheel.runtime.servers.part_optimizer import split_for, trained_by
from freewheel.runtime.servers.scores import FINAL, Scores
from freewheel.runtime.servers.sequencer import Order, Sequencer, from_wire, to_wire
from freewheel.runtime.servers.served_part import ServedPart
from freewheel.transport.base import Interrupted, Message

#: How often a server looks for deadlines and for workers that wait long.
_LOOK_EVERY_S = 0.1


@dataclass(slots=True)
class _Arrival:
    """A request of a worker; a push counts as arrived once every server has its part."""

    message: Message
    missing: int = 0
    non_finite: int = 0


class Server:
    """Serves until the last worker has left.

    Args:
        job: this process's.
        config: the run's.
        mail: to workers, other servers and the coordinator.
        protocol: for a server.
        module: the whole model, with its initial values.
        optimizer: of all its trainable parameters, cut down to this server's part; unused where
            workers have their own.
        schedule: makes the schedule of the optimizer, or None.
        scores: what scores the model, on server 0 of a run that is to be scored.

    Raises:
        ConfigError: what the configuration asks for cannot be served.
    """

    def __init__(
        self,
        job: Job,
        config: Config,
        mail: Mail,
        protocol: Protocol,
        module: nn.Module,
        optimizer: Optimizer,
        schedule: Callable[[Optimizer], Any],
        scores: Scores | None = None,
    ) -> None:
        _check(config, protocol)
        self.watch = protocol.watch
        layout, self.rank = config.layout, job.rank
        self.mail, self.module, self.kind = mail, module, protocol.pushes
        own = optimizer if self.kind == "gradient" else None
        parameters = trained_by(optimizer)
        self.parameters = parameters
        parts, whole = split_for(own, parameters, layout.servers)
        part = ServedPart(parameters, parts[self.rank], own, whole)
        part.correct_momentum(layout.server_momentum, layout.workers)
        self.scores = scores
        self.others = [f"server {s}" for s in range(layout.servers) if s != self.rank]
        self.together = layout.consistency == "global"
        self.leads = self.rank == 0 or not self.together
        self.hands = Hands(
            mail,
            self.rank,
            part,
            self.kind,
            None if own is None else schedule(own),
            layout.workers,
            list(module.buffers()) if self.rank == 0 else [],
            config.train.clip_norm,
            self.others,
            lambda rank: codings_of(config, self.rank, rank),
            protocol.watch,
        )
        self.arrivals = ArrivalsFile(Path(job.run_dir), self.rank, self.leads)
        central = protocol.central()
        if central is None:
            raise RuntimeError(f"protocol {protocol.name} has no central machine")
        self.sequencer = Sequencer(central, layout.workers, self.arrivals.add)
        self.recorder = Recorder(mail, job.began_at)
        self._queues: dict[int, deque[_Arrival]] = {r: deque() for r in range(layout.workers)}
        self._early: dict[tuple[int, int], list[int]] = {}
        self._next_look_s = 0.0
        self._told: dict[int, int] = {}
        self._ending = False
        #: The worker whose parameters are the initial ones; None: all processes built the same.
        self.begins_from: str | None = None

    def run(self) -> dict[str, Any]:
        """Serve; return this process's totals."""
        keep_freed_memory()
        self.mail.link.interrupt_on("gone")
        self.mail.watch.lap()
        if self.begins_from is not None:
            self.hands.begin_from(self.begins_from)
        if self.leads:
            self._do(self.sequencer.welcome(time.monotonic(), self.begins_from is not None))
        while not self._finished():
            message = self._next()
            if message is not None:
                self._hear(message)
            while self.hands.noticed:
                self._gone(self.hands.noticed.pop())
            if time.monotonic() >= self._next_look_s:
                self._look()
        self._finish()
        served = {"served": self.sequencer.facts()} if self.leads else {}
        return {**self.recorder.final(), **served, "step": 0}

    def _next(self) -> Message | None:
        """Return the next message, None when a deadline or a look is due before it."""
        began_s = time.perf_counter()
        due_s = min((self._next_look_s, *self.sequencer.wakes_at_s.values()))
        try:
            return self.mail.link.receive(timeout_s=max(0.0, due_s - time.monotonic()))
        except LinkTimeoutError:
            return None
        except Interrupted as interrupt:
            self.hands.notice(interrupt)
            return None
        finally:
            self.mail.watch.add_wait("workers", time.perf_counter() - began_s)

    def _look(self) -> None:
        """Look for deadlines, for scores, and for workers that wait long."""
        now_s = time.monotonic()
        self._next_look_s = now_s + _LOOK_EVERY_S
        if not self.leads:
            return
        if self.sequencer.wakes_at_s:
            self._do(self.sequencer.wake(now_s))
        if self.scores is not None:
            self.scores.tell()
        for rank in self.sequencer.members:
            notes = self.sequencer.workers[rank]
            waited_s = now_s - notes.asked_at_s
            if not notes.waiting or waited_s < LONG_WAIT_S or waited_s < self._told.get(rank, 0):
                continue
            self._told[rank] = int(waited_s) + 1
            cause = self.sequencer.blocked_by(rank)
            whom = "servers" if cause is None else f"worker {cause}"
            about = {"process": f"worker {rank}", "for": whom, "seconds": waited_s}
            self.mail.tell("waiting", about)

    def _hear(self, message: Message) -> None:
        kind = message.kind
        if kind in ("push", "pull", "report", "leave"):
            self._request(message)
        elif kind == "have":
            self._have(message)
        elif kind == "orders":
            self._carry_out([from_wire(value) for value in message.meta["do"]])
        elif kind == "wish":
            # there is no state of a run with servers that could be saved, so a wish is to stop
            self.hands.stopping |= message.meta["wish"] == Wish.SAVE_AND_STOP
        elif kind == "part" and self.scores is not None:
            self.scores.take(int(message.sender.split()[1]), message.clock, message.tensors[0])

    def _request(self, message: Message) -> None:
        role, _, number = message.sender.partition(" ")
        rank = int(number) if role == "worker" and number.isdecimal() else -1
        if rank not in self.sequencer.workers or rank in self.hands.gone:
            return
        try:
            message = self.hands.opened(rank, message)
        except WireError as error:
            self.sequencer.refused(rank)
            self.hands.refuse(rank, message.clock, str(error))
            return
        arrival = _Arrival(message)
        if message.kind == "push":
            why = self.hands.misfit(message)
            if why:
                self.sequencer.refused(rank)
                self.hands.refuse(rank, message.clock, why)
                return
            self.hands.hold(rank, message)
            arrival.non_finite = num_non_finite(message.tensors[:1])
            if self.together and not self.leads:
                meta = {"worker": rank, "bad": arrival.non_finite}
                self.mail.send("server 0", Message("have", clock=message.clock, meta=meta))
                return
            if self.together and self.others:
                known = self._early.pop((rank, message.clock), [])
                arrival.missing = len(self.others) - len(known)
                arrival.non_finite += sum(known)
        if message.kind == "report":
            size = self.watch.size if isinstance(self.watch, Variance) else 0
            if [tuple(tensor.shape) for tensor in message.tensors] != [(size,)]:
                self.sequencer.refused(rank)
                self.hands.refuse(rank, message.clock, f"its report does not hold {size} numbers")
                return
        if message.kind == "leave":
            self.hands.leaving(rank, bool(message.index))
        if self.leads:
            self._queues[rank].append(arrival)
            self._take_arrivals(rank)

    def _have(self, message: Message) -> None:
        """Note that another server has its part of a push, maybe before our own part came."""
        rank, bad = int(message.meta["worker"]), int(message.meta["bad"])
        for arrival in self._queues[rank]:
            if arrival.message.kind == "push" and arrival.message.clock == message.clock:
                arrival.missing -= 1
                arrival.non_finite += bad
                self._take_arrivals(rank)
                return
        self._early.setdefault((rank, message.clock), []).append(bad)

    def _take_arrivals(self, rank: int) -> None:
        """Handle a worker's requests in their order, up to one that has not wholly arrived."""
        queue = self._queues[rank]
        while queue and not queue[0].missing:
            arrival = queue.popleft()
            message, now_s = arrival.message, time.monotonic()
            if message.kind == "push":
                evidence = dict(message.meta["e"])
                bad = max(arrival.non_finite, int(evidence.get("non_finite", 0)))
                if bad:
                    evidence["non_finite"] = float(bad)
                    self.hands.tell_refused(rank, message.clock, f"{bad} non-finite values")
                else:
                    self.hands.take_buffers(rank, message)
                based_on, kind = message.meta["on"], message.tree
                push = Push(rank, message.clock, based_on, message.num_samples, kind)
                pull = message.index == PULLS
                self._do(self.sequencer.pushed(push, evidence, pull, now_s))
            elif message.kind == "pull":
                self._do(self.sequencer.pulled(rank, message.clock, now_s))
            elif message.kind == "report":
                told = read_report(message.tensors[0])
                report = Reported(rank, message.clock, message.num_samples, *told)
                self._do(self.sequencer.reported(report, now_s))
            else:
                self.hands.take_buffers(rank, message)
                self._do(self.sequencer.left(rank, now_s))
            self._score_if_due()

    def _gone(self, rank: int) -> None:
        """Go on without a worker that died; what every server has of its pushes stays valid."""
        self.hands.gone.add(rank)
        if not self.leads:
            return
        queue = self._queues[rank]
        while queue and not queue[0].missing:
            self._take_arrivals(rank)
        queue.clear()
        clock = self.sequencer.workers[rank].clock
        forget = Order("forget", rank=rank, clock=clock, version=self.sequencer.version)
        self._do([forget, *self.sequencer.left(rank, time.monotonic())])

    def _do(self, orders: Sequence[Order]) -> None:
        """Carry orders out, here and on the other servers."""
        if not orders:
            return
        if self.together and self.others:
            self._share(orders)
        self._carry_out(orders)

    def _share(self, orders: Sequence[Order]) -> None:
        do = [to_wire(order) for order in orders if not order.alone]
        for server in self.others if do else ():
            self.mail.send(server, Message("orders", meta={"do": do}))

    def _carry_out(self, orders: Sequence[Order]) -> None:
        for order in orders:
            if order.what == "snapshot":
                vector = self.hands.part.snapshot()
                if self.scores is not None:
                    self.scores.take(0, order.clock, vector)
                else:
                    self.hands.send_for_reader(order.clock, vector)
            elif order.what == "end":
                self._ending = True
            else:
                self.hands.do(order)

    def _score_if_due(self) -> None:
        """Ask for a score when the workers have taken so many steps on average."""
        if self.scores is None:
            return
        notes = self.sequencer.workers.values()
        step = sum(worker.clock for worker in notes) // len(notes)
        if self.scores.is_due(step):
            order = Order("snapshot", clock=step, version=self.sequencer.version)
            self.scores.ask(step, order.version, self.hands.mean_buffers())
            if self.others:
                self._share([order])
            self._carry_out([order])

    def _finished(self) -> bool:
        if self.leads and not self.sequencer.members and not self._ending:
            if self.together:
                self._do([Order("end", version=self.sequencer.version)])
            elif self.rank == 0:
                self._share([Order("end")])
                self._ending = True
        # an order may overtake a worker's goodbye, which is larger
        return self._ending and self.hands.all_have_left()

    def _finish(self) -> None:
        """Let the workers go, and score the end."""
        self.hands.farewell()
        vector = self.hands.part.snapshot()
        if self.scores is not None:
            step = self.scores.total_steps
            self.scores.ask(step, self.sequencer.version, self.hands.mean_buffers())
            self.scores.take(0, step, vector)
            while self.scores.missing:
                self._hear(self.mail.link.receive(kind="part", timeout_s=self.mail.timeout_s))
            self.scores.close()
        elif self.rank != 0:
            self.hands.send_for_reader(FINAL, vector)
        self.arrivals.flush()


def _check(config: Config, protocol: Protocol) -> None:
    layout = config.layout
    if isinstance(protocol.watch, Variance) and layout.consistency == "per_server":
        raise ConfigError(
            f"protocol {protocol.name!r} compares whole models, and with layout.consistency = "
            '"per_server" each server decides for its part; leave one of the two out'
        )
    if config.checkpoint.every or config.checkpoint.every_s:
        raise ConfigError(
            'a run with layout.kind = "server" cannot be saved on its way: leave checkpoint.every '
            "and checkpoint.every_s out; its final parameters are kept"
        )
    if config.train.clip_norm and layout.consistency == "per_server" and layout.servers > 1:
        raise ConfigError(
            "train.clip_norm needs the gradient of the whole model, and with "
            'layout.consistency = "per_server" each server updates its part by itself; leave one '
            "of the two out"
        )
