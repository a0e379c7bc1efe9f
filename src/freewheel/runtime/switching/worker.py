"""The role of a worker that begins with all-reduce, goes over to servers, and may come back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from freewheel.errors import FreewheelError, LinkTimeoutError, NonFiniteError
from freewheel.models.seeding import seeded
from freewheel.monitors import Verdict
from freewheel.observe.board import ALL_REDUCE
from freewheel.protocols.replicas import Grant, Joined, Reduced, SwitchTopology
from freewheel.protocols.strategy_switch import StrategySwitch
from freewheel.protocols.switching import logged
from freewheel.runtime.checkpoints.snapshot import restore
from freewheel.runtime.context import Context, next_step, score_batches
from freewheel.runtime.mail import SilentPeerError
from freewheel.runtime.recorder import means
from freewheel.runtime.replicas.replica import ReplicaRole
from freewheel.runtime.role import Wish
from freewheel.runtime.servers.coding import codings_of
from freewheel.runtime.servers.packing import Packing
from freewheel.runtime.servers.part_optimizer import split_for, trained_by
from freewheel.runtime.stages.stage import MetricSums, MicroBatch, add_sums
from freewheel.runtime.switching import evidence
from freewheel.runtime.switching.hand_over import (
    fingerprint,
    load_returned,
    order_of,
    state_message,
    unpacked,
)
from freewheel.runtime.switching.returning import CountingRecorder, LeavingExchange, Returned
from freewheel.runtime.updates import Updater, squared_norm
from freewheel.streams.sampler import Batch
from freewheel.transport.base import CHECKPOINT, Interrupted, Message


class SwitchingWorkerRole(ReplicaRole):
    """Trains as a replica until rank 0 says switch, then as a worker of the servers.

    Rank 0 shows the criterion each step's evidence, and its decision rides in the next all-reduce,
    so that all hear it at the same step. Then, in this order:

    1. each worker saves its part of a checkpoint, and waits until all have;
    2. each tells every server what it holds, and rank 0 sends parameters and optimizer state;
    3. each waits for leave to start from the servers, which comes when all hold the same.

    Args:
        context: this process's job, configuration, pieces and mail.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context, evidence.num_slots(context.config.layout.workers))
        protocol = self.protocol
        if not isinstance(protocol, StrategySwitch):
            raise TypeError(f"{protocol.name} does not switch")
        self.recorder: CountingRecorder = CountingRecorder(self.mail, context.job.began_at)
        #: Samples that a step's losses are divided by; None: those of the round, which all know.
        self._divisor: int | None = None
        self._groups = 0
        self._changes = protocol.changes()
        if self.updater.optimizer is not None:
            self._changes.check(self.updater.optimizer)
        self._needs = frozenset(protocol.needs)
        self._central = protocol.central()
        for rank in range(self.num_workers):
            self._central.on(Joined(rank))
        self._seen: dict[str, float] = {"num_samples": 1.0}
        self._grants: list[list[int]] = []
        self._logged: Verdict | None = None
        self._over = False
        #: Whether the run's final parameters are here: where it ends under all-reduce.
        self.saves_final = False
        self._began_s = 0.0
        per_epoch = -(-self.sampler.steps_per_epoch // self.config.train.accumulate)
        self._steps_per_epoch = max(1, per_epoch)

    def extra_state(self) -> dict[str, Any]:
        """Return whether all-reduce is over, and rank 0's view of it."""
        mine = self.rank == 0
        return {
            "over": self._over,
            "seen": self._seen if mine else {},
            "central": self._central.state_dict() if mine else {},
            "grants": self._grants,
            "ahead": self.recorder.ahead,
            "divisor": self._divisor,
        }

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take over what ``extra_state`` returned."""
        self._over, self._grants = state["over"], state["grants"]
        self.recorder.ahead, self._divisor = state["ahead"], state["divisor"]
        if self.rank == 0:
            self._seen = dict(state["seen"])
            self._central.load_state_dict(state["central"])

    def run(self) -> dict[str, Any]:
        """Train to the end under both protocols; return this process's totals."""
        waited_for: dict[str, float] = {}
        try:
            if self.context.job.resume_from:
                restore(self, Path(self.context.job.resume_from))
            self.prepare()
            while True:
                wish = self._under_all_reduce()
                stops = wish is Wish.SAVE_AND_STOP or self.step >= self.total_steps
                if not self._over or stops:
                    return self._dismiss()
                exchange = self._hand_over()
                returned = self._under_servers(exchange)
                for whom, seconds in exchange.waited_for.items():
                    waited_for[whom] = waited_for.get(whom, 0.0) + seconds
                if not returned:
                    return {**self.recorder.final(), "step": self.step, "waited_for": waited_for}
                self._take_back(exchange, returned)
        except BaseException:
            # who ends the run wants to know how far this process came
            with suppress(FreewheelError, Interrupted):
                self.recorder.flush()
            raise
        finally:
            self.group.close()

    def _under_all_reduce(self) -> Wish:
        self.mail.watch.lap()
        wish = Wish.NOTHING
        try:
            while not self._over and self.step < self.total_steps:
                self._began_s = time.perf_counter()
                wish = self._one_step()
                if wish is Wish.SAVE_AND_STOP:
                    break
        except LinkTimeoutError as error:
            if isinstance(error, SilentPeerError):
                raise
            raise SilentPeerError(ALL_REDUCE, str(error)) from error
        return wish

    def write_beside(self, sums: MetricSums, total_samples: int) -> None:
        """Write what criteria look at; rank 0 asks its own before, and says what it said."""
        seconds = time.perf_counter() - self._began_s
        loss = sums.get("loss", (0.0, 0.0))
        norm_sq = 0.0
        if "grad_norm_sq" in self._needs and loss[1]:
            # the gradient here is this replica's share of the mean over all samples
            share = total_samples / loss[1]
            norm_sq = squared_norm(p.grad for p in self.updater.parameters) * share**2
        held_out = (0.0, 0.0)
        if "validation_loss" in self._needs and (self.step + 1) % self._steps_per_epoch == 0:
            held_out = self._validate()
        switch = self.rank == 0 and self._asks_criterion()
        seconds = seconds if loss[1] else 0.0
        evidence.write(self.sum.beside, self.rank, switch, loss, held_out, norm_sq, seconds)

    def total_samples(self, batches: Sequence[Batch]) -> int:
        """Return what losses are divided by; after a return, workers are in different rounds."""
        return super().total_samples(batches) if self._divisor is None else self._divisor

    def read_beside(self, epoch: int) -> None:
        """Take the evidence of this step, and heed what rank 0 said."""
        if self._divisor is not None:
            self._divide_by_samples(self._divisor)
        norm_sq = 0.0
        if "grad_norm_sq" in self._needs:
            norm_sq = squared_norm(p.grad for p in self.updater.parameters)
        lasted_s = time.perf_counter() - self._began_s
        progress = (self.step + 1) / self.total_steps
        self._over, self._seen = evidence.read(self.sum.beside, lasted_s, norm_sq, epoch, progress)

    def _divide_by_samples(self, divisor: int) -> None:
        """Make the sum of gradients the mean over the samples that there really were."""
        count = evidence.samples(self.sum.beside)
        if count > 0:
            for parameter in self.updater.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(divisor / count)

    def _asks_criterion(self) -> bool:
        """Show the criterion the step before; whether it switches after the one under way."""
        actions = self._central.on(Reduced(self.step + 1, self._seen))
        verdict = self._central.verdict
        if verdict is not None and verdict is not self._logged:
            self._logged = verdict
            for row in logged(verdict):
                self.mail.tell("event", {"event": "verdict", "step": self.step, **row})
        self._grants = [[each.rank, each.clock] for each in actions if isinstance(each, Grant)]
        return any(isinstance(action, SwitchTopology) for action in actions)

    def _validate(self) -> tuple[float, float]:
        """Return the loss on this replica's share of the validation part: a sum, and a number."""
        split, sums = self.source.validation, dict[str, tuple[float, float]]()
        for index, indices in enumerate(score_batches(split, self.config.eval.batch_size)):
            if index % self.num_workers == self.rank:
                part = MicroBatch(len(indices), split.inputs(indices), split.targets(indices))
                add_sums(sums, self.stage.evaluate(self.step, index, part))
        return sums.get("loss", (0.0, 0.0))

    def _dismiss(self) -> dict[str, Any]:
        """Let the servers go: they are not needed any more."""
        if self.rank == 0:
            for server in range(self.config.layout.servers):
                self.mail.send(f"server {server}", Message("dismiss"))
        self.recorder.flush()
        self.saves_final = self.rank == 0
        facts = {"switch": self._central.facts()} if self.rank == 0 else {}
        return {**self.recorder.final(), **facts, "step": self.step}

    def _under_servers(self, exchange: LeavingExchange) -> list[Message]:
        """Train until all samples are taken, or all-reduce comes back: what servers return then."""
        try:
            self._exchange_to_the_end(exchange)
        except Returned as returned:
            first, *others = exchange.servers
            messages = [returned.message]
            for server in others:
                messages.append(self.mail.receive("returned", server, returned.message.clock))
            if returned.message.sender != first:
                raise RuntimeError("the servers were not asked in their order") from returned
            return messages
        return []

    def _exchange_to_the_end(self, exchange: LeavingExchange) -> None:
        exchange.begin()
        accumulate = self.config.train.accumulate * self._changes.batches
        while not exchange.stopped:
            start = time.perf_counter()
            version = exchange.versions[0]
            batches = next_step(self.sampler, accumulate)
            sums, num_samples = self._gradient(batches)
            shown = means(sums)
            bad = exchange.add_gradient(num_samples) if num_samples else 0.0
            if bad:
                exchange.restore_buffers()
                shown["non_finite"] = bad
            self.step += 1
            rate, seconds = exchange.rate, time.perf_counter() - start
            staleness = None
            try:
                staleness = exchange.step_done(self.step, num_samples, shown, seconds).staleness
            finally:
                more = {"staleness": staleness, "version": version}
                self.recorder.step(self.step, sums, num_samples, rate, batches[-1].epoch, **more)
        exchange.end(self.step)
        self.recorder.flush()

    def _take_back(self, exchange: LeavingExchange, returned: Sequence[Message]) -> None:
        """Become a replica again, with what the servers held, at the step of the run."""
        packing, mine = exchange.packing, self.step + self.recorder.ahead
        self.updater = Updater(
            self.module,
            self.context.pieces.optimizer,
            lambda made: self.context.pieces.schedule(made, self.total_steps),
        )
        optimizer = self.updater.optimizer
        if optimizer is None:
            raise RuntimeError("a model without trainable parameters came as far as a return")
        parameters = trained_by(optimizer)
        for place, message in enumerate(returned):
            vector, state, buffers = unpacked(message)
            packing.unpack(place, vector)
            load_returned(optimizer, parameters, packing.parts[place], state)
            if self.updater.schedule is not None and state["schedule"] is not None:
                self.updater.schedule.load_state_dict(state["schedule"])
            for own, value in zip(self.module.buffers(), buffers, strict=False):
                own.copy_(value)
        if self.rank == 0:
            self._central.load_state_dict(returned[0].meta["machine"])
        self.step = returned[0].clock
        self.recorder.ahead = mine - self.step
        clocks = {"clock": self.step, "granted": self.step - 1, "pushed": self.step}
        self.machine.load_state_dict(clocks)
        self._over, self._seen = False, {"num_samples": 1.0}
        self._divisor = self.num_workers * self.config.data.batch_size
        self._groups += 1
        self.meet(self._groups)

    def _gradient(self, batches: Sequence[Batch]) -> tuple[MetricSums, int]:
        """Compute the gradient of the mean loss over this worker's own samples."""
        self.updater.clear()
        parts = [self._part(self.step, batch) for batch in batches if len(batch.indices)]
        if not parts:
            return {}, 0
        # the random numbers of a step depend on seed, rank and step alone
        with seeded(self.config.run.seed, self.rank * 1_000_003 + self.step + 1):
            try:
                sums = self.stage.train_step(self.step, parts).sums
            except NonFiniteError:
                sums = {}  # the servers refuse it, and say whose it was
        return sums, sum(part.num_samples for part in parts)

    def _hand_over(self) -> LeavingExchange:
        self._save()
        self._wait_for_all()
        optimizer = self.updater.optimizer
        if optimizer is None:
            raise RuntimeError("a model without trainable parameters came as far as a hand-over")
        parameters = trained_by(optimizer)
        parts, whole = split_for(optimizer, parameters, self.config.layout.servers)
        packing = Packing(parameters, parts)
        vectors = packing.pack_parameters()
        buffers = [buffer.detach().clone() for buffer in self.module.buffers()]
        for server, (part, vector) in enumerate(zip(parts, vectors, strict=True)):
            said = {
                "order": order_of(self.module, parameters, part),
                "fingerprint": fingerprint(vector),
            }
            # a message without tensors would overtake those with
            beside: list[Tensor] = buffers if server == 0 else []
            ready = Message("ready", (torch.empty(0), *beside), clock=self.step, meta=said)
            self.mail.send(f"server {server}", ready)
        if self.rank == 0:
            facts = {
                "clock": self.step,
                "version": self._central.version,
                "members": list(range(self.num_workers)),
                "machine": self._central.state_dict(),
                "grants": self._grants,
            }
            for server, (part, vector) in enumerate(zip(parts, vectors, strict=True)):
                message = state_message(
                    vector, part, parameters, optimizer, self.updater.schedule, whole, facts
                )
                self.mail.send(f"server {server}", message)
        self.group.close()
        self.updater.optimizer = self.updater.schedule = None
        return LeavingExchange(
            self.mail,
            self.rank,
            self.module,
            packing,
            self.machine,
            "gradient",
            lambda server: codings_of(self.config, server, self.rank),
        )

    def _wait_for_all(self) -> None:
        """Wait until every worker's part of the checkpoint is on its disk."""
        with self.mail.link.traffic.counting(CHECKPOINT), self.mail.watch.waiting(ALL_REDUCE):
            self.group.sum(torch.zeros(1))
