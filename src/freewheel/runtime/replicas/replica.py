"""The role of a replica: data-parallel training by all-reduce, step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from freewheel.errors import LinkTimeoutError
from freewheel.observe.board import ALL_REDUCE
from freewheel.runtime.context import Context, score_batches, scored_part
from freewheel.runtime.links import interface_of
from freewheel.runtime.mail import SilentPeerError
from freewheel.runtime.recorder import means
from freewheel.runtime.replicas.allreduce import GradientSum, average_buffers, broadcast_state
from freewheel.runtime.role import Gathered, TrainingRole, Wish
from freewheel.runtime.stages.lone import lone_stage
from freewheel.runtime.stages.stage import MetricSums, MicroBatch, add_sums
from freewheel.streams.batching import check_finite
from freewheel.streams.sampler import Batch
from freewheel.transport.base import EVALUATE, Message
from freewheel.transport.group import Group


class ReplicaRole(TrainingRole):
    """Trains one replica.

    Args:
        context: this process's job, configuration, pieces and mail.
        num_beside: further numbers that are summed beside the gradients, see ``write_beside``.
    """

    def __init__(self, context: Context, num_beside: int = 0) -> None:
        config, rank = context.config, context.job.rank
        source = context.pieces.source()
        module = context.pieces.partition(source).build(0).to(config.run.device)
        self.num_workers, self._role = config.layout.workers, context.job.role
        super().__init__(context, source, module, rank, self.num_workers)
        self.stage = lone_stage(context, module)
        self._num_beside = num_beside
        self.meet()

    def meet(self, again: int = 0) -> None:
        """Join the others in a new group; ``again`` counts those before it."""
        job, config = self.context.job, self.config
        name = f"rendezvous-{job.run_id}" + (f"-{again}" if again else "")
        self.group = Group(
            self.rank,
            self.num_workers,
            Path(job.run_dir) / name,
            self.mail.link.traffic,
            config.run.step_timeout_s,
            interface_of(config),
            lambda seconds: self.mail.tell("waiting", {"for": ALL_REDUCE, "seconds": seconds}),
        )
        self.sum = GradientSum(self.group, self.updater.parameters, self._num_beside)

    def run(self) -> dict[str, Any]:
        """Train; return this process's totals."""
        try:
            return super().run()
        except LinkTimeoutError as error:
            if isinstance(error, SilentPeerError):
                raise
            raise SilentPeerError(ALL_REDUCE, str(error)) from error
        finally:
            self.group.close()

    @property
    def saves_parameters(self) -> bool:
        """Whether this is replica 0: the others hold the same parameters."""
        return self.rank == 0

    def prepare(self) -> None:
        """Start all replicas from rank 0's parameters."""
        if self.context.job.resume_from:
            return  # all read the checkpoint; buffers may differ, as they did when it was taken
        with self.mail.link.traffic.counting(EVALUATE):
            broadcast_state(self.group, self.module)

    def gradients(self, batches: Sequence[Batch], wish: Wish) -> Gathered:
        """Add up the gradient of the mean over all replicas' samples; rank 0's wish rides along."""
        parts = [self._part(self.step, batch) for batch in batches if len(batch.indices)]
        sums: MetricSums = {}
        total = self.total_samples(batches)
        if parts:
            sums = self.stage.train_step(self.step, parts, total_samples=total).sums
        self.write_beside(sums, total)
        with self.mail.watch.waiting(ALL_REDUCE):
            heard = self.sum.run(float(wish))
        self.read_beside(batches[-1].epoch)
        if self.config.train.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.updater.parameters, self.config.train.clip_norm)
        return Gathered(sums, sum(part.num_samples for part in parts), Wish(int(heard)))

    def total_samples(self, batches: Sequence[Batch]) -> int:
        """Return what the step's summed losses are divided by: the samples of all replicas."""
        return sum(batch.num_in_round for batch in batches)

    def write_beside(self, sums: MetricSums, total_samples: int) -> None:
        """Write into ``self.sum.beside`` what is to be summed with this step's gradients."""

    def read_beside(self, epoch: int) -> None:
        """Read the sums from ``self.sum.beside``; the gradients are summed, and not yet clipped."""

    def _part(self, step: int, batch: Batch) -> MicroBatch:
        train, indices = self.source.train, batch.indices
        part = MicroBatch(len(indices), train.inputs(indices), train.targets(indices))
        check_finite(part.inputs, f"inputs of step {step + 1}", indices)
        check_finite(part.targets, f"targets of step {step + 1}", indices)
        return part

    def evaluate(self) -> None:
        """Score the test part, each replica its share of the batches; rank 0 tells the sum."""
        step, split, start = self.step, scored_part(self.source), time.perf_counter()
        if self.rank == 0:
            self.mail.tell("scoring", {"step": step})
        sums: MetricSums = {}
        with self.mail.link.traffic.counting(EVALUATE):
            average_buffers(self.group, self.module)
            for index, indices in enumerate(score_batches(split, self.config.eval.batch_size)):
                if index % self.num_workers != self.rank:
                    continue
                part = MicroBatch(len(indices), split.inputs(indices), split.targets(indices))
                add_sums(sums, self.stage.evaluate(step, index, part))
            if self.rank != 0:
                scores = Message("scores", clock=step, meta={"sums": sums})
                self.mail.send(f"{self._role} 0", scores)
            else:
                for other in range(1, self.num_workers):
                    message = self.mail.receive("scores", f"{self._role} {other}", step)
                    add_sums(sums, message.meta["sums"])
        if self.rank == 0:
            self.recorder.flush()
            seconds = time.perf_counter() - start
            self.mail.tell("evaluated", {"step": step, "metrics": means(sums), "seconds": seconds})
        self.mail.watch.lap()
