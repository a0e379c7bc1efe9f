"""The role of a worker of the servers: gradients on its own batches, pushed and pulled."""

from __future__ import annotations

import time
from typing import Any

from torch import nn

from freewheel.errors import NonFiniteError
from freewheel.models.seeding import seeded
from freewheel.runtime.context import Context, next_step
from freewheel.runtime.length import length_of
from freewheel.runtime.recorder import Recorder, means
from freewheel.runtime.sampling import make_sampler
from freewheel.runtime.servers.coding import codings_of
from freewheel.runtime.servers.exchange import Exchange
from freewheel.runtime.servers.packing import Packing
from freewheel.runtime.servers.part_optimizer import split_for, trained_by
from freewheel.runtime.stages.lone import lone_stage
from freewheel.runtime.stages.stage import MetricSums, MicroBatch
from freewheel.runtime.updates import Updater
from freewheel.streams.batching import check_finite
from freewheel.streams.sampler import Batch


class ServerWorkerRole:
    """Trains from the first step to the last, at the pace that the protocol allows.

    Args:
        context: this process's job, configuration, pieces and mail.
    """

    def __init__(self, context: Context) -> None:
        config, self.rank = context.config, context.job.rank
        self.config, self.mail = config, context.mail
        layout = config.layout
        self.source = context.pieces.source()
        self.module = context.pieces.partition(self.source).build(0).to(config.run.device)
        self.stage = lone_stage(context, self.module)
        num_samples = len(self.source.train)
        self.sampler = make_sampler(config, num_samples, self.rank, layout.workers)
        self.total_steps = length_of(config, num_samples)
        self.recorder = Recorder(self.mail, context.job.began_at)
        protocol = context.protocol()
        self.local = protocol.pushes != "gradient"
        self.updater = Updater(
            self.module,
            context.pieces.optimizer,
            lambda optimizer: context.pieces.schedule(optimizer, self.total_steps),
        )
        parameters = trained_by(self.updater.optimizer) if self.updater.optimizer else []
        # what the servers run decides how the parameters are cut
        optimizer = None if self.local else self.updater.optimizer
        parts, _ = split_for(optimizer, parameters, layout.servers)
        machine = protocol.local(self.rank)
        packing = Packing(parameters, parts)
        self.exchange = Exchange(
            self.mail,
            self.rank,
            self.module,
            packing,
            machine,
            protocol.pushes,
            lambda server: codings_of(config, server, self.rank),
            protocol.watch,
        )
        if not self.local:
            self.updater.optimizer = self.updater.schedule = None

    def run(self) -> dict[str, Any]:
        """Train; return this process's totals."""
        self.mail.watch.lap()
        self.exchange.begin()
        step = 0
        while step < self.total_steps and not self.exchange.stopped:
            start = time.perf_counter()
            seen = self._versions()
            batches = next_step(self.sampler, self.config.train.accumulate)
            sums, num_samples = self._train(step, batches)
            lr = self.exchange.rate if not self.local else self.updater.lr
            evidence = means(sums)
            bad = self._take(num_samples)
            if bad:
                evidence["non_finite"] = bad
            seconds = time.perf_counter() - start
            step += 1
            done = self.exchange.step_done(step, num_samples, evidence, seconds)
            self.recorder.step(
                step,
                sums,
                num_samples,
                lr,
                batches[-1].epoch,
                staleness=done.staleness,
                **seen,
            )
        self.exchange.end(step)
        self.recorder.flush()
        waited_for = dict(self.exchange.waited_for)
        return {**self.recorder.final(), "step": step, "waited_for": waited_for}

    def _versions(self) -> dict[str, Any]:
        """Return the version that the next step is based on; of each server, where they differ."""
        versions = self.exchange.versions
        if self.config.layout.consistency == "global":
            return {"version": versions[0]}
        return {"version": min(versions), "versions": list(versions)}

    def _train(self, step: int, batches: list[Batch]) -> tuple[MetricSums, int]:
        """Compute the gradient of the mean loss over this worker's own samples."""
        self.updater.clear()
        parts = [self._part(step, batch) for batch in batches if len(batch.indices)]
        if not parts:
            return {}, 0
        num_samples = sum(part.num_samples for part in parts)
        # the random numbers of a step depend on seed, rank and step alone, so that a record of
        # arrivals is enough to repeat the run
        with seeded(self.config.run.seed, self.rank * 1_000_003 + step + 1):
            try:
                sums = self.stage.train_step(step, parts).sums
            except NonFiniteError:
                # its gradient is not finite either: the servers refuse it, and say whose it was
                sums = {}
        return sums, num_samples

    def _part(self, step: int, batch: Batch) -> MicroBatch:
        train, indices = self.source.train, batch.indices
        part = MicroBatch(len(indices), train.inputs(indices), train.targets(indices))
        check_finite(part.inputs, f"inputs of step {step + 1}", indices)
        check_finite(part.targets, f"targets of step {step + 1}", indices)
        return part

    def _take(self, num_samples: int) -> float:
        """Hand the gradient over, or take a step of our own; return how many values are bad."""
        if not num_samples:
            return 0.0
        if not self.local:
            bad = self.exchange.add_gradient(num_samples)
        else:
            bad = self.exchange.num_bad_gradients()
            if not bad:
                if self.config.train.clip_norm is not None:
                    nn.utils.clip_grad_norm_(self.updater.parameters, self.config.train.clip_norm)
                self.updater.apply()
        if bad:
            self.exchange.restore_buffers()
        return bad
