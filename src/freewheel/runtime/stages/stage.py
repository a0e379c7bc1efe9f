"""One stage of a pipeline: forwards and backwards of micro-batches, and what crosses its cuts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.errors import ModelError, NonFiniteError
from freewheel.models.checkpointing import checkpointed
from freewheel.runtime.stages.cut import Cut, Parcel
from freewheel.runtime.stages.replaying import Kept
from freewheel.runtime.stages.schedule import stage_ops
from freewheel.runtime.stages.seeding import backward_from
from freewheel.transport.tree import flatten, unflatten

Loss = Callable[[Any, Any], Tensor]
MetricSums = dict[str, tuple[float, float]]
Metrics = Callable[[Any, Any], MetricSums]


@dataclass(slots=True)
class MicroBatch:
    """A part of a batch: its size, what the first stage reads, what the last one compares with.

    ``samples`` are their numbers in the data set, for codecs that remember each sample.
    """

    num_samples: int
    inputs: Any = None
    targets: Any = None
    samples: Tensor | None = None


@dataclass(slots=True)
class _Flight:
    """What a stage keeps of a micro-batch between its forward and its backward."""

    tree: Any = None
    inputs: list[Tensor] = field(default_factory=list)
    received: list[Tensor] = field(default_factory=list)
    sent: list[Tensor] = field(default_factory=list)
    gradients: dict[int, Tensor] = field(default_factory=dict)
    loss: Tensor | None = None
    unscored: tuple[Any, Any] | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step was like.

    Args:
        sums: on the last stage, sums and counts by name, ``"loss"`` among them; else nothing.
        note: words that rode forward, from all stages up to this one.
        answer: the last stage's word, which rode back.
        kept: boundary tensors of each micro-batch, where they were to be kept.
    """

    sums: MetricSums
    note: Mapping[str, Any]
    answer: Mapping[str, Any]
    kept: list[Kept]


class Stage:
    """Runs steps of one stage over a link.

    The first stage is given inputs, the last one targets; the others need only the sizes. Tensors
    of any dtype, tuples, lists, dicts and None cross a cut; gradients cross back for those that
    require them.

    Args:
        module: this stage's layers.
        rank: this stage; 0 reads the inputs.
        num_stages: stages in the pipeline.
        before: the cut to the stage before; None for the first.
        after: the cut to the stage after; None for the last.
        loss: maps (output, targets) to the mean loss over the samples (last stage only).
        metrics: maps (output, targets) to sums and counts by name (last stage only).
        schedule: ``"gpipe"`` or ``"1f1b"``.
        device: where this stage computes.
        autocast: the dtype of autocast, or None.
        decide: on the last stage of a protocol that decides: maps (sums, note) of a step to the
            answer that rides back; None elsewhere.
        answers: whether the protocol decides, so that an answer is to be waited for.
        keeps: whether boundary tensors are to be kept.
        meanwhile: what to do while the step's last gradient is on its way; not called on the last
            stage.
        recompute: keep no activations inside the stage; compute them again in the backward.
    """

    def __init__(
        self,
        module: nn.Module,
        rank: int,
        num_stages: int,
        before: Cut | None,
        after: Cut | None,
        loss: Loss,
        metrics: Metrics,
        *,
        schedule: str = "1f1b",
        device: str = "cpu",
        autocast: torch.dtype | None = None,
        recompute: bool = False,
        decide: Callable[[MetricSums, Mapping[str, Any]], Mapping[str, Any]] | None = None,
        answers: bool = False,
        keeps: bool = False,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self.module = module
        self._call = checkpointed(module) if recompute else module
        self.rank = rank
        self.num_stages = num_stages
        self.before = before
        self.after = after
        self.schedule = schedule
        self._loss = loss
        self._metrics = metrics
        self._device = torch.device(device)
        self._autocast = autocast
        self._writes_inputs = any(getattr(m, "inplace", False) for m in module.modules())
        self._trains = any(p.requires_grad for p in module.parameters())
        self._flights: dict[int, _Flight] = {}
        self._decide, self._answers, self._keeps = decide, answers, keeps
        self._meanwhile = meanwhile
        self._own: Mapping[str, Any] = {}
        self._note: Mapping[str, Any] = {}
        self._answer: Mapping[str, Any] = {}
        self._trial = False

    @property
    def call(self) -> Callable[[Any], Any]:
        """Runs the stage's layers."""
        return self._call

    @property
    def is_first(self) -> bool:
        """Whether this stage reads the inputs."""
        return self.rank == 0

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the loss."""
        return self.rank == self.num_stages - 1

    def train_step(
        self,
        clock: int,
        parts: Sequence[MicroBatch],
        total_samples: int | None = None,
        note: Mapping[str, Any] | None = None,
        trial: bool = False,
    ) -> StepResult:
        """Add the gradient of the summed loss, divided by the number of samples, to ``grad``.

        Args:
            clock: steps finished before this one.
            parts: the micro-batches of the step, none empty.
            total_samples: what to divide by; by default the samples of all parts, which makes it
                the mean loss.
            note: words to the stages after this one; they ride on the first micro-batch.
            trial: the parameters are a prediction that may be wild: numbers that are not finite
                are sent as large ones, for the last stage to judge.

        Raises:
            NonFiniteError: the loss is NaN or infinite, and the step is not undone.
        """
        self.module.train()
        self._own = self._note = note or {}
        self._answer, self._trial = {}, trial
        kept: list[Kept] = []
        total = total_samples or sum(part.num_samples for part in parts)
        sums: MetricSums = {}
        for op in stage_ops(self.schedule, self.rank, self.num_stages, len(parts)):
            if op.what == "forward":
                part = parts[op.micro]
                flight = self._flights[op.micro] = _Flight()
                output = self._forward(clock, op.micro, part, flight)
                if self.is_last:
                    loss = self._loss_of(output, part, flight, sums)
                    flight.loss = loss * (part.num_samples / total)
                    # a protocol that decides may go by the metrics; else they can wait
                    if self._decide is not None:
                        self._score(flight, sums)
            else:
                part, flight = parts[op.micro], self._flights.pop(op.micro)
                self._backward(clock, op.micro, part, flight, op.micro == len(parts) - 1, sums)
                self._score(flight, sums)
                if self._keeps:
                    kept.append(self._kept(part, flight, part.num_samples / total))
        for cut in (self.before, self.after):
            if cut is not None:
                cut.settle()
        if not self._answer.get("rollback"):
            self._check(sums, clock)
        return StepResult(sums, self._note, self._answer, kept)

    def _kept(self, part: MicroBatch, flight: _Flight, share: float) -> Kept:
        targets = _to(part.targets, self._device) if self.is_last else None
        sent = [tensor.detach() for tensor in flight.sent]
        return Kept(flight.tree, flight.inputs, sent, flight.gradients, targets, share)

    @torch.no_grad()
    def evaluate(self, clock: int, index: int, part: MicroBatch) -> MetricSums:
        """Run one part forward only; return sums and counts by name on the last stage."""
        self.module.eval()
        sums: MetricSums = {}
        flight = _Flight()
        output = self._forward(clock, index, part, flight, kind="score")
        if self.is_last:
            self._loss_of(output, part, flight, sums)
            self._score(flight, sums)
        return sums

    def _forward(
        self, clock: int, index: int, part: MicroBatch, flight: _Flight, kind: str = "forward"
    ) -> Any:
        if self.before is None:
            value = _to(part.inputs, self._device)
            if self._keeps:
                flight.tree, tensors = flatten(value)
                flight.inputs = list(tensors)
        else:
            parcel = self.before.receive(kind, clock, index, part.samples)
            self._check_size(parcel, part, clock, index)
            if index == 0:
                self._note = _merged(parcel.note, self._own)
            value = self._open(parcel, flight)
        with self._casting():
            output = self._call(value)
        if self.after is not None:
            self._pass_on(self.after, clock, index, part, output, flight, kind)
        return output

    def _open(self, parcel: Parcel, flight: _Flight) -> Any:
        inputs = list(parcel.tensors)
        flight.tree = parcel.tree["value"]
        flight.inputs = [tensor.detach() for tensor in inputs]
        for i in parcel.tree["grad"]:
            leaf = parcel.tensors[i].requires_grad_()
            flight.received.append(leaf)
            # a leaf that requires grad may not be written to by a first layer with inplace=True
            inputs[i] = leaf.clone() if self._writes_inputs else leaf
        return unflatten(parcel.tree["value"], inputs)

    def _pass_on(
        self,
        cut: Cut,
        clock: int,
        index: int,
        part: MicroBatch,
        output: Any,
        flight: _Flight,
        kind: str,
    ) -> None:
        value, tensors = flatten(output)
        wants_grad = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
        flight.sent = [tensors[i] for i in wants_grad]
        # an output that is a parameter itself would be changed by the optimizer while it travels
        outgoing = [t.detach().clone() if t.is_leaf else t for t in tensors]
        if self._trial:
            outgoing = _finite(outgoing)
        tree = {"value": value, "grad": wants_grad}
        note = self._note if index == 0 and kind == "forward" else {}
        cut.send(kind, clock, index, part.num_samples, outgoing, tree, part.samples, note)

    def _check_size(self, parcel: Parcel, part: MicroBatch, clock: int, index: int) -> None:
        if parcel.num_samples != part.num_samples:
            raise ModelError(
                f"stage {self.rank} expected {part.num_samples} samples in micro-batch {index} of "
                f"step {clock}, got {parcel.num_samples}; all stages must read the same data in "
                f"the same order: check that the data factory gives the same in every process"
            )

    def _loss_of(self, output: Any, part: MicroBatch, flight: _Flight, sums: MetricSums) -> Tensor:
        targets = _to(part.targets, self._device)
        with self._casting():
            loss = self._loss(output, targets)
        if loss.dim() != 0:
            raise ModelError(
                f"the loss must be one number, the mean over the samples; got shape "
                f"{tuple(loss.shape)}; use reduction='mean'"
            )
        add_sums(sums, {"loss": (float(loss.detach()) * part.num_samples, part.num_samples)})
        flight.unscored = output, targets
        return loss

    @torch.no_grad()
    def _score(self, flight: _Flight, sums: MetricSums) -> None:
        """Add the metrics of a micro-batch, unless that is done."""
        if flight.unscored is not None:
            add_sums(sums, self._metrics(*flight.unscored))
            flight.unscored = None

    def _backward(
        self,
        clock: int,
        index: int,
        part: MicroBatch,
        flight: _Flight,
        is_end: bool,
        sums: MetricSums,
    ) -> None:
        if is_end and self._decide is not None:
            self._answer = self._decide(sums, self._note)
        if flight.loss is not None:
            if flight.loss.requires_grad:
                flight.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            elif flight.received or self._trains:
                raise ModelError(
                    "the loss does not depend on what is trained: it requires no gradient; compute "
                    "it from the model's output, outside torch.no_grad() and without .item()"
                )
        elif flight.sent and self.after is not None:
            if is_end and self._meanwhile is not None:
                self._meanwhile()
            parcel = self.after.receive("backward", clock, index, part.samples)
            self._answer = parcel.note or self._answer
            given = parcel.tree["grad"]
            if given:
                backward_from([flight.sent[i] for i in given], parcel.tensors)
            flight.gradients = dict(zip(given, parcel.tensors, strict=True))
        elif is_end and self._answers and self.after is not None:
            self._answer = self.after.hear("answer", clock)
        if flight.received and self.before is not None:
            used = [i for i, leaf in enumerate(flight.received) if leaf.grad is not None]
            gradients = [leaf.grad for leaf in flight.received if leaf.grad is not None]
            self.before.send(
                "backward",
                clock,
                index,
                part.num_samples,
                _finite(gradients) if self._trial else gradients,
                {"grad": used},
                part.samples,
                self._answer if is_end else {},
            )
        elif is_end and self._answers and self.before is not None:
            self.before.tell("answer", clock, self._answer)

    def _casting(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device.type, dtype=self._autocast)

    @staticmethod
    def _check(sums: MetricSums, clock: int) -> None:
        value = sums.get("loss", (0.0, 1.0))[0]
        if value != value or value in (float("inf"), float("-inf")):
            raise NonFiniteError(
                f"the training loss at step {clock} is {value}; it must be finite. Lower "
                f"optimizer.lr, set train.clip_norm, or look for bad samples in that batch"
            )


def add_sums(sums: MetricSums, more: MetricSums) -> None:
    """Add sums and counts by name into ``sums``.

    Example:
        >>> from freewheel.runtime.stages.stage import add_sums
        >>> sums = {"loss": (1.0, 2.0)}
        >>> add_sums(sums, {"loss": (0.5, 1.0)})
        >>> sums
        {'loss': (1.5, 3.0)}
    """
    for name, (value, count) in more.items():
        before = sums.get(name, (0.0, 0.0))
        sums[name] = (before[0] + value, before[1] + count)


def _merged(note: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """Join the words that came with a stage's own; proposals of several stages stand in a list."""
    if not own or not note:
        return note or own
    proposals = [*note.get("proposals", ()), *own.get("proposals", ())]
    return {**note, **own, "proposals": proposals}


def _finite(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [torch.nan_to_num(t) if t.is_floating_point() else t for t in tensors]


def _to(value: Any, device: torch.device) -> Any:
    if device.type == "cpu":
        return value
    tree, tensors = flatten(value)
    return unflatten(tree, [tensor.to(device) for tensor in tensors])
