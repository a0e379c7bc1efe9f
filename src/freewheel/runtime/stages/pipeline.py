"""The role of a stage: model-parallel training, step by step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.codecs import make_codec
from freewheel.errors import ConfigError, NonFiniteError
from freewheel.protocols.replay import Replay as ReplayProtocol
from freewheel.protocols.stages import Coast, Replay
from freewheel.runtime.context import Context, score_batches, scored_part
from freewheel.runtime.recorder import means
from freewheel.runtime.role import Gathered, TrainingRole, Wish
from freewheel.runtime.stages.cut import Cut
from freewheel.runtime.stages.rounds import Rounds
from freewheel.runtime.stages.stage import MetricSums, MicroBatch, Stage, add_sums
from freewheel.runtime.updates import clip, squared_norm
from freewheel.streams.base import Split, is_repeatable
from freewheel.streams.batching import check_finite, split_batch
from freewheel.streams.sampler import Batch
from freewheel.transport.base import EVALUATE, Message


class PipelineRole(TrainingRole):
    """Trains one stage.

    Args:
        context: this process's job, configuration, pieces and mail.
    """

    def __init__(self, context: Context) -> None:
        config, rank = context.config, context.job.rank
        source = context.pieces.source()
        partition = context.pieces.partition(source)
        module = partition.build(rank).to(config.run.device)
        super().__init__(context, source, module, rank=0, num_workers=1)
        self.num_stages = partition.num_stages
        self._ties = _own_ties(partition.ties, rank, module)
        self.rounds = Rounds(
            self.protocol,
            config,
            rank,
            self.num_stages,
            module,
            self.machine,
            lambda event, what: self.mail.tell("event", {"event": event, **what}),
        )
        if self.rounds.answers and partition.ties:
            raise ConfigError(
                f"protocol {self.protocol.name!r} lets stages move on alone, and "
                f"{partition.ties[0][0][1]!r} is one parameter on several stages; cut so that all "
                f'its uses lie on one stage, or use protocol = "vanilla"'
            )
        self._fetched: tuple[Tensor, list[MicroBatch]] | None = None
        fetches_ahead = config.train.accumulate == 1 and is_repeatable(source.train)
        self.cuts = [cut for cut in (self._cut_to(rank - 1), self._cut_to(rank + 1)) if cut]
        self.stage = Stage(
            module,
            rank,
            self.num_stages,
            next((cut for cut in self.cuts if cut.peer == f"stage {rank - 1}"), None),
            next((cut for cut in self.cuts if cut.peer == f"stage {rank + 1}"), None),
            context.pieces.loss(),
            context.pieces.metrics(),
            schedule=config.layout.schedule,
            device=config.run.device,
            autocast=context.autocast,
            recompute=config.model.checkpoint_activations,
            decide=self._decide if self.rounds.central is not None else None,
            answers=self.rounds.answers,
            keeps=self.rounds.keeps,
            meanwhile=self._fetch_ahead if rank == 0 and fetches_ahead else None,
        )
        is_last = rank == self.num_stages - 1
        self.rounds.set_up_replay(
            self.stage.call, context.pieces.loss() if is_last else None, config.run.seed
        )

    def _cut_to(self, other: int) -> Cut | None:
        """Return this stage's side of the cut to a neighbour, if there is one."""
        if not 0 <= other < self.num_stages:
            return None
        section, device = self.config.codec, torch.device(self.config.run.device)
        forward, backward = make_codec(section.forward), make_codec(section.backward)
        out, into = (forward, backward) if other > self.rank else (backward, forward)
        # every sender of the run rounds with random numbers of its own
        seed = (self.config.run.seed * 1009 + self.rank) * 2 + (other > self.rank)
        return Cut(self.mail, f"stage {other}", out, into, device, seed)

    def gradients(self, batches: Sequence[Batch], wish: Wish) -> Gathered:
        """Run the micro-batches through the stages; what stage 0 was asked for travels along."""
        step = self.step
        parts = [part for batch in batches for part in self._cut(step, batch)]
        note = self.rounds.note()
        if wish is not Wish.NOTHING:
            note["wish"] = int(wish)
        result = self.stage.train_step(step, parts, note=note, trial=self.rounds.trial)
        stands = self.rounds.heed(step + 1, result)
        self._finish_gradients(step)
        num_samples = sum(part.num_samples for part in parts)
        return Gathered(result.sums, num_samples, Wish(result.note.get("wish", 0)), stands)

    def move_on_alone(self) -> None:
        """Coast or replay, where that is the plan."""
        now, steps = self.rounds.round_at(self.step, self.total_steps)
        if steps == 0:
            return
        start = self.step
        if isinstance(now, Coast) and self.rounds.coasting is not None:
            self.rounds.coasting.jump(steps)
            self.rounds.trial = True
            self.skip(steps)
        elif isinstance(now, Replay):
            self._replay(steps)
        what = {"step": start, "steps": steps, "round": type(now).__name__.lower()}
        if self.stage.is_last:
            self.mail.tell("event", {"event": "alone", **what})

    def _replay(self, steps: int) -> None:
        """Take the local steps of one round, spread evenly over the batches that it spans."""
        replaying, protocol = self.rounds.replaying, self.protocol
        repeats = protocol.num_repeats if isinstance(protocol, ReplayProtocol) else 0
        for i in range(steps):
            due = repeats * (i + 1) // steps - repeats * i // steps
            for _ in range(due if replaying is not None else 0):
                self.module.train()
                self.updater.clear()
                if replaying is not None and replaying.add_gradients():
                    self._clip_alone()
                    self.updater.step_only()
                    self.updates_alone += 1
            self.skip(1)

    def _clip_alone(self) -> None:
        """Clip by the norm of this stage's part: that of the whole is not known without a word."""
        if self.config.train.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.updater.parameters, self.config.train.clip_norm)

    def _decide(self, sums: MetricSums, note: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.rounds.decide(self.step + 1, sums, note)

    def after_step(self, evidence: dict[str, float], duration_s: float) -> None:
        """Tell the predictor and the protocol's machine that a step has ended."""
        self.rounds.after_step(self.step, evidence, duration_s)

    def extra_state(self) -> dict[str, Any]:
        """Return the state of the protocol beside this stage, and of the codecs at its cuts."""
        return {"rounds": self.rounds.state_dict(), "cuts": self._cut_states()}

    def _cut_states(self) -> dict[str, Any]:
        return {
            cut.peer: {
                "out": cut.out.state_dict(),
                "into": cut.into.state_dict(),
                "generator": cut.generator.get_state(),
            }
            for cut in self.cuts
        }

    def load_extra_state(self, state: dict[str, Any]) -> None:
        """Take over the state of the protocol and of the codecs."""
        self.rounds.load_state_dict(state["rounds"])
        for cut in self.cuts:
            own = state["cuts"][cut.peer]
            cut.out.load_state_dict(own["out"])
            cut.into.load_state_dict(own["into"])
            cut.generator.set_state(own["generator"])

    def _fetch_ahead(self) -> None:
        """Fetch the next batch while others compute; bad samples wait until it is their turn."""
        batch = self.sampler.peek()
        with suppress(NonFiniteError):
            if batch is not None:
                self._fetched = batch.indices, self._fetch(self.step + 1, batch)

    def _cut(self, step: int, batch: Batch) -> list[MicroBatch]:
        """Return the micro-batches of a batch, fetched before where that could be done."""
        fetched, self._fetched = self._fetched, None
        if fetched is not None and torch.equal(fetched[0], batch.indices):
            return fetched[1]
        return self._fetch(step, batch)

    def _fetch(self, step: int, batch: Batch) -> list[MicroBatch]:
        train, stage = self.source.train, self.stage
        parts = []
        for start, stop in split_batch(len(batch.indices), self.config.layout.micro_batches):
            indices = batch.indices[start:stop]
            part = MicroBatch(stop - start, samples=indices)
            if stage.is_first:
                part.inputs = train.inputs(indices)
                check_finite(part.inputs, f"inputs of step {step + 1}", indices)
            if stage.is_last:
                part.targets = train.targets(indices)
                check_finite(part.targets, f"targets of step {step + 1}", indices)
            parts.append(part)
        return parts

    def _finish_gradients(self, step: int) -> None:
        """Bring gradients of tied parameters together, then clip by the norm of the whole model."""
        for group, (parameter, holders) in enumerate(self._ties):
            parameter.grad = self._sum_over(holders, step, group, parameter)
        max_norm = self.config.train.clip_norm
        if max_norm is None:
            return
        if self.num_stages == 1:
            nn.utils.clip_grad_norm_(self.updater.parameters, max_norm)
            return
        # a tied parameter is one parameter: only its first holder counts it
        counted_elsewhere = {id(p) for p, holders in self._ties if holders[0] != self.rank}
        own = squared_norm(
            p.grad for p in self.updater.parameters if id(p) not in counted_elsewhere
        )
        clip(self.updater.parameters, self._total(own, step), max_norm)

    def _sum_over(
        self, holders: tuple[int, ...], step: int, group: int, parameter: nn.Parameter
    ) -> Tensor:
        """Return the sum of a tied parameter's gradients, added in the same order everywhere."""
        own = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        for other in holders:
            if other != self.rank:
                message = Message("tied", (own,), clock=step, index=group)
                self.mail.send(f"stage {other}", message)
        parts = [
            own
            if holder == self.rank
            else self.mail.receive("tied", f"stage {holder}", step, group).tensors[0].to(own.device)
            for holder in holders
        ]
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        return total

    def _total(self, own: float, step: int) -> float:
        """Return the sum over all stages of a number, added up by stage 0 in their order."""
        if self.rank != 0:
            self.mail.send("stage 0", Message("norm", clock=step, meta={"part": own}))
            return float(self.mail.receive("norm", "stage 0", step).meta["total"])
        total = own
        for other in range(1, self.num_stages):
            total += float(self.mail.receive("norm", f"stage {other}", step).meta["part"])
        for other in range(1, self.num_stages):
            self.mail.send(f"stage {other}", Message("norm", clock=step, meta={"total": total}))
        return total

    def evaluate(self) -> None:
        """Score the test part; its traffic and time are kept out of the training figures."""
        step, split, start = self.step, scored_part(self.source), time.perf_counter()
        if self.stage.is_last:
            self.mail.tell("scoring", {"step": step})
        sums: MetricSums = {}
        with self.mail.link.traffic.counting(EVALUATE):
            for index, indices in enumerate(score_batches(split, self.config.eval.batch_size)):
                found = self.stage.evaluate(step, index, self._scored(split, indices))
                add_sums(sums, found)
        if self.stage.is_last:
            self.recorder.flush()
            seconds = time.perf_counter() - start
            self.mail.tell("evaluated", {"step": step, "metrics": means(sums), "seconds": seconds})
        self.mail.watch.lap()

    def _scored(self, split: Split, indices: Tensor) -> MicroBatch:
        return MicroBatch(
            len(indices),
            split.inputs(indices) if self.stage.is_first else None,
            split.targets(indices) if self.stage.is_last else None,
        )


def _own_ties(
    ties: tuple[tuple[tuple[int, str], ...], ...], rank: int, module: nn.Module
) -> list[tuple[nn.Parameter, tuple[int, ...]]]:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return [
        (parameters[name], tuple(stage for stage, _ in group))
        for group in ties
        for stage, name in group
        if stage == rank
    ]
