"""What all roles that train have in common: the loop over steps, records, checkpoints."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from torch import nn

from freewheel.errors import CheckpointError, FreewheelError, LinkTimeoutError
from freewheel.protocols.base import StepDone
from freewheel.runtime.checkpoints.checkpoint import open_checkpoint, save_part
from freewheel.runtime.checkpoints.snapshot import restore, take
from freewheel.runtime.context import Context, next_step, passed
from freewheel.runtime.length import length_of
from freewheel.runtime.recorder import Recorder, means
from freewheel.runtime.sampling import make_sampler
from freewheel.runtime.stages.stage import MetricSums
from freewheel.runtime.updates import Updater
from freewheel.streams.base import Source
from freewheel.streams.sampler import Batch
from freewheel.transport.base import COORDINATOR, Interrupted


class Wish(IntEnum):
    """What a person, or a timer, wants done after the step that is under way."""

    NOTHING = 0
    SAVE = 1
    SAVE_AND_STOP = 2


@dataclass(frozen=True, slots=True)
class Gathered:
    """The gradients of one step are in place.

    Args:
        sums: of metrics, where this process knows them.
        num_samples: that this process used.
        wish: what all processes shall do after this step.
        keep: whether the optimizer shall take the step; False where it is undone.
    """

    sums: MetricSums
    num_samples: int
    wish: Wish
    keep: bool = True


class TrainingRole(ABC):
    """Trains a module, or its part of one, from the first step to the last.

    Args:
        context: this process's job, configuration, pieces and mail.
        source: the data.
        module: what this process holds of the model.
        rank: which of the workers that share out the samples; 0 of 1 in a pipeline.
        num_workers: workers that share out the samples.
    """

    def __init__(
        self, context: Context, source: Source, module: nn.Module, rank: int, num_workers: int
    ) -> None:
        config = context.config
        self.context, self.config, self.mail = context, config, context.mail
        self.rank = context.job.rank
        self.source, self.module = source, module
        num_samples = len(source.train)
        self.sampler = make_sampler(config, num_samples, rank, num_workers)
        resume_from = context.job.resume_from
        checkpoint = open_checkpoint(Path(resume_from)) if resume_from else None
        self.total_steps = length_of(config, num_samples, checkpoint)
        self.updater = Updater(
            module,
            context.pieces.optimizer,
            lambda optimizer: context.pieces.schedule(optimizer, self.total_steps),
        )
        self.recorder = Recorder(self.mail, context.job.began_at)
        self.protocol = context.protocol()
        self.machine = self.protocol.local(self.rank)
        self.step = 0
        #: Updates on kept tensors since the last exchange.
        self.updates_alone = 0

    @property
    def saves_parameters(self) -> bool:
        """Whether a checkpoint has parameters and optimizer from this process, or from another."""
        return True

    @abstractmethod
    def gradients(self, batches: Sequence[Batch], wish: Wish) -> Gathered:
        """Add up the gradients of one step, as the optimizer shall have them.

        Args:
            batches: this worker's samples.
            wish: what this process was asked for; only rank 0 is asked.
        """

    def move_on_alone(self) -> None:  # noqa: B027 - most protocols have no such rounds
        """Take the steps that the protocol wants taken without an exchange, if it is their turn."""

    def skip(self, steps: int) -> None:
        """Let data and schedule move on by so many steps that are not taken."""
        for _ in range(steps):
            next_step(self.sampler, self.config.train.accumulate)
            if self.updater.schedule is not None:
                self.updater.schedule.step()
        self.step += steps

    @abstractmethod
    def evaluate(self) -> None:
        """Score the test part, and tell the coordinator."""

    def prepare(self) -> None:  # noqa: B027 - most have nothing to prepare
        """Do what must be done once, before the first step of this process."""

    def extra_state(self) -> dict[str, Any]:
        """Return what else a checkpoint must hold: tensors and plain values."""
        return {}

    def load_extra_state(self, state: dict[str, Any]) -> None:  # noqa: B027 - as extra_state
        """Take over what ``extra_state`` returned, in a run of the same layout."""

    def run(self) -> dict[str, Any]:
        """Train; return this process's totals."""
        if self.context.job.resume_from:
            restore(self, Path(self.context.job.resume_from))
        self.prepare()
        self.mail.watch.lap()
        wish = Wish.NOTHING
        try:
            while self.step < self.total_steps and wish is not Wish.SAVE_AND_STOP:
                wish = self._one_step()
        except BaseException:
            # who ends the run wants to know how far this process came
            with suppress(FreewheelError, Interrupted):
                self.recorder.flush()
            raise
        self.recorder.flush()
        return {**self.recorder.final(), "step": self.step}

    def _one_step(self) -> Wish:
        before, start = self.step, time.perf_counter()
        self.move_on_alone()
        batches = next_step(self.sampler, self.config.train.accumulate)
        self.updater.clear()
        found = self.gradients(batches, self._asked())
        lr = self.updater.lr
        self.updater.apply(found.keep)
        self.step += 1
        updates, self.updates_alone = self.updates_alone + int(found.keep), 0
        self.recorder.step(
            self.step, found.sums, found.num_samples, lr, batches[-1].epoch, updates=updates
        )
        self.after_step(means(found.sums), time.perf_counter() - start)
        if passed(before, self.step, self.config.eval.every) or self.step == self.total_steps:
            self.evaluate()
        every = self.config.checkpoint.every
        if found.wish is not Wish.NOTHING or passed(before, self.step, every):
            self._save()
        return found.wish

    def after_step(self, evidence: dict[str, float], duration_s: float) -> None:
        """Tell the protocol's machine that a step has ended."""
        self.machine.on(StepDone(self.step, evidence, duration_s))

    def _asked(self) -> Wish:
        """Return what the coordinator has asked for since the last step, without waiting."""
        if self.rank != 0:
            return Wish.NOTHING
        wish = Wish.NOTHING
        while True:
            try:
                message = self.mail.link.receive(kind="wish", sender=COORDINATOR, timeout_s=0.0)
            except LinkTimeoutError:
                return wish
            wish = max(wish, Wish(message.meta["wish"]))

    def _save(self) -> None:
        name = self.context.job.name.replace(" ", "-")
        folder = Path(self.context.job.run_dir) / "checkpoints"
        self.recorder.flush()
        try:
            tensors, values = take(self)
            files = save_part(folder, self.step, name, tensors, values)
        except CheckpointError as error:
            self.mail.tell("unsaved", {"step": self.step, "error": str(error)})
        else:
            self.mail.tell("saved", {"step": self.step, "files": files})
        self.mail.watch.lap()
