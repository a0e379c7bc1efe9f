"""Real gradients of a real model for every simulated worker, in one process."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from freewheel.aggregation.tensors import num_non_finite, weighted_sum
from freewheel.errors import ConfigError
from freewheel.models.seeding import seeded
from freewheel.protocols.at_switch import Changes
from freewheel.protocols.changed import Changed
from freewheel.protocols.replicas import Evidence, Kind
from freewheel.simulate.flat import FlatModule
from freewheel.simulate.workload import Budget, Workload

#: Inputs and targets of one batch, and how many samples they are; None where there are none.
TrainingBatch = tuple[Any, Any, int]
MakeBatches = Callable[[int], Iterator[TrainingBatch]]
MakeOptimizer = Callable[[list[nn.Parameter]], Any]
MakeSchedule = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Mean:
    """The gradient in one push: a mean over samples, which parameters it covers, its batches."""

    gradient: Tensor
    present: tuple[bool, ...]
    batches: int

    def with_gradient(self, gradient: Tensor) -> _Mean:
        """Return the same with another gradient."""
        return replace(self, gradient=gradient)


class _Own:
    """What one worker has of its own."""

    def __init__(self, parameters: Tensor, buffers: list[Tensor]) -> None:
        self.parameters, self.buffers = parameters, buffers
        self.pulled = parameters
        self.batch: TrainingBatch | None = None
        self.steps = 0
        # Since the last push: batches, and gradients, each with its samples and which parameters
        # it covers.
        self.batches = 0
        self.samples = 0
        self.bad = 0
        self.gradients: list[tuple[Tensor, tuple[bool, ...], int]] = []
        self.replica: FlatModule | None = None
        self.optimizer: Any = None
        self.schedule: Any = None


class Training(Workload):
    """Trains a model: gradients on each worker's parameters, updates where the protocol says.

    With ``local=False`` workers push gradients, and only the server has an optimizer. With
    ``local=True`` every worker has a model and an optimizer of its own (memory: N times), and
    pushes deltas or parameters. Random numbers of a step depend on seed, rank and its number alone.
    Buffers (BatchNorm) belong to each worker; the server's are their mean.

    Args:
        module: the initial model; used for the server.
        batches: for a rank its batches, without end.
        loss: of (output, targets), a mean over samples.
        make_optimizer: of a list of parameters.
        make_schedule: of an optimizer; None for no schedule.
        budget: of steps.
        batch_size: samples of a full batch.
        local: see above.
        clip_norm: clip each gradient (where there is an optimizer) to this norm; None does not.
        seed: of dropout and the like.

    Example:
        >>> import itertools, torch
        >>> from freewheel.protocols import protocols
        >>> from freewheel.simulate import Budget, Simulation
        >>> from freewheel.simulate.training import Training
        >>> batch = (torch.ones(4, 2), torch.zeros(4, 1), 4)
        >>> work = Training(
        ...     torch.nn.Linear(2, 1), lambda rank: itertools.repeat(batch), torch.nn.MSELoss(),
        ...     lambda parameters: torch.optim.SGD(parameters, lr=0.1), None, Budget(20, 2), 4)
        >>> _ = Simulation(protocols.create("asp"), work, 2).run()
        >>> bool(work.server.module(batch[0]).abs().max() < 0.1)
        True
    """

    def __init__(
        self,
        module: nn.Module,
        batches: MakeBatches,
        loss: Callable[[Any, Any], Tensor],
        make_optimizer: MakeOptimizer,
        make_schedule: MakeSchedule | None,
        budget: Budget,
        batch_size: int,
        local: bool = False,
        clip_norm: float | None = None,
        seed: int = 0,
    ) -> None:
        self.budget, self.batch_size, self.local = budget, batch_size, local
        self._make_batches, self._loss = batches, loss
        self._make_optimizer, self._make_schedule = make_optimizer, make_schedule
        self._clip_norm, self._seed = clip_norm, seed
        self._template = copy.deepcopy(module)
        self.server = FlatModule(module)
        self._scratch = FlatModule(copy.deepcopy(self._template))
        self.num_bytes = self.server.num_bytes
        self.optimizer = None if local else make_optimizer(self.server.parameters)
        self.schedule = self._scheduled(self.optimizer)
        self._rounds = self._batches = 0
        self._changed: Changed | None = None
        self._per_step = 1
        self._initial = self.snapshot()
        self._streams: dict[int, Iterator[TrainingBatch]] = {}
        self._own: dict[int, _Own] = {}
        self._left_buffers: list[list[Tensor]] = []

    @property
    def lr(self) -> float | None:
        """The server's learning rate, or None where it has no optimizer."""
        return None if self.optimizer is None else float(self.optimizer.param_groups[0]["lr"])

    def next_batch(self, rank: int) -> int | None:
        """Take the worker's next batch, if the budget allows."""
        if not self.budget.take(rank):
            return None
        if rank not in self._streams:
            self._streams[rank] = self._make_batches(rank)
        own = self._worker(rank)
        taken = [next(self._streams[rank])]
        while len(taken) < self._per_step and self.budget.take(rank):
            taken.append(next(self._streams[rank]))
        own.batch = taken[0] if len(taken) == 1 else _joined(taken)
        own.batches += len(taken)
        return own.batch[2]

    def share(self, num_samples: int) -> float:
        """Return samples / batch size."""
        return num_samples / self.batch_size

    def step(self, rank: int) -> Evidence:
        """Compute a gradient on the worker's parameters; take its own optimizer's step, if any."""
        own = self._worker(rank)
        own.steps += 1
        batch, own.batch = own.batch, None
        if batch is None or batch[2] == 0:
            return {}
        own.samples += batch[2]
        where = own.replica or self._scratch
        if own.replica is None:
            where.flat.copy_(own.parameters)
            for buffer, mine in zip(where.buffers, own.buffers, strict=True):
                buffer.copy_(mine)
        before = [buffer.clone() for buffer in where.buffers]
        where.module.zero_grad(set_to_none=True)
        with seeded(self._seed, rank * 1_000_003 + own.steps):
            loss = self._loss(where.module(batch[0]), batch[1])
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no annotation here
        bad = num_non_finite([p.grad for p in where.parameters if p.grad is not None])
        own.bad += bad
        if own.replica is None:
            own.buffers = before if bad else [buffer.clone() for buffer in where.buffers]
            own.gradients.append((*where.gradient(), batch[2]))
        elif bad:  # such a step is not taken
            for buffer, value in zip(where.buffers, before, strict=True):
                buffer.copy_(value)
        else:
            self._update(where, own.optimizer)
            if own.schedule is not None:
                own.schedule.step()
        return {"loss": float(loss.detach()), "non_finite": float(bad)}

    def take_push(self, rank: int, kind: Kind) -> Any:
        """Return the mean gradient, the change, or the parameters."""
        own = self._worker(rank)
        own.samples = own.bad = 0
        if kind == "gradient":
            gradients, own.gradients = own.gradients, []
            batches, own.batches = own.batches, 0
            if not gradients:
                return _Mean(self.server.flat.new_empty(0), (), batches)
            total = sum(samples for _, _, samples in gradients)
            mean = weighted_sum([g for g, _, _ in gradients], [n / total for _, _, n in gradients])
            return _Mean(mean, _any(present for _, present, _ in gradients), batches)
        current = own.parameters if own.replica is None else own.replica.flat.clone()
        return current - own.pulled if kind == "delta" else current

    def fold(self, payloads: Sequence[Any], weights: Sequence[float], kind: Kind) -> None:
        """Step the server's optimizer, or move the server's parameters."""
        if kind == "gradient":
            mean = weighted_sum([each.gradient for each in payloads], weights)
            self.server.set_gradient(mean, _any(each.present for each in payloads))
            self._update(self.server, self.optimizer)
            self._handled(payloads)
            return
        with torch.no_grad():
            update = weighted_sum(payloads, weights)
            if kind == "delta":
                self.server.flat.add_(update)
            else:
                rest = 1.0 - sum(weights)
                # Rounding may leave a rest of 1e-16 where the weights make up the whole.
                if rest > 1e-9:
                    update.add_(self.server.flat, alpha=rest)
                self.server.flat.copy_(update)

    def drop(self, payload: Any) -> None:
        """Let the schedule go on."""
        if isinstance(payload, _Mean):
            self._handled([payload])

    def snapshot(self) -> Tensor:
        """Return a copy of the server's parameters."""
        return self.server.flat.detach().clone()

    def adopt(self, rank: int, snapshot: Any, mix: float) -> None:
        """Take the snapshot, or move towards it by ``mix``."""
        own = self._worker(rank)
        if own.replica is None:
            own.parameters = snapshot if mix == 1.0 else own.parameters.lerp(snapshot, mix)
            own.pulled = snapshot
            return
        with torch.no_grad():
            if mix == 1.0:
                own.replica.flat.copy_(snapshot)
            else:
                own.replica.flat.lerp_(snapshot, mix)
        own.pulled = own.replica.flat.clone()

    def leave(self, rank: int) -> None:
        """Forget the worker, but for its buffers."""
        own = self._own.pop(rank, None)
        if own is not None and own.steps:
            self._left_buffers.append(self._buffers_of(own))

    def switched(self, changes: Changes | None, num_workers: int) -> int:
        """Change the server's rates and momentum, and the batches of a step; None takes it back."""
        if self._changed is not None:
            self._changed.undo()
            self._changed = None
        self._per_step = 1 if changes is None else changes.batches
        if self.optimizer is None:
            return 0
        if changes is not None:
            changes.check(self.optimizer)
            self._changed = Changed(self.optimizer, self.schedule, changes, num_workers)
        kept = (v for state in self.optimizer.state.values() for v in state.values())
        return sum(v.numel() * v.element_size() for v in kept if isinstance(v, Tensor))

    def norms_sq(self, payloads: Sequence[Any]) -> tuple[list[float], float]:
        """Return the squared norm of each gradient, and of their sum."""
        gradients = [each.gradient for each in payloads if isinstance(each, _Mean)]
        if not gradients:
            return [], 0.0
        norms = [float(gradient.double().square().sum()) for gradient in gradients]
        return norms, float(torch.stack(gradients).double().sum(0).square().sum())

    def trained(self) -> nn.Module:
        """Return the server's module; its buffers are the mean of all workers', rounded to theirs.

        The parameters are the server's own, not a copy.
        """
        sets = [*self._left_buffers, *(self._buffers_of(o) for o in self._own.values() if o.steps)]
        if sets:
            for index, buffer in enumerate(self.server.buffers):
                values = [buffers[index] for buffers in sets]
                if buffer.is_floating_point():
                    buffer.copy_(torch.stack(values).mean(0))
                else:
                    buffer.copy_(torch.stack(values).amax(0))
        return self.server.module

    def _worker(self, rank: int) -> _Own:
        if rank not in self._own:
            buffers = [buffer.clone() for buffer in self._template.buffers()]
            own = _Own(self._initial, buffers)
            if self.local:
                own.replica = FlatModule(copy.deepcopy(self._template))
                own.optimizer = self._make_optimizer(own.replica.parameters)
                own.schedule = self._scheduled(own.optimizer)
            self._own[rank] = own
        return self._own[rank]

    def _buffers_of(self, own: _Own) -> list[Tensor]:
        return own.buffers if own.replica is None else own.replica.buffers

    def _scheduled(self, optimizer: Any) -> Any:
        if optimizer is None or self._make_schedule is None:
            return None
        return self._make_schedule(optimizer)

    def _update(self, where: FlatModule, optimizer: Any) -> None:
        if self._clip_norm is not None:
            clip_grad_norm_(where.parameters, self._clip_norm)
        optimizer.step()

    def _handled(self, payloads: Sequence[_Mean]) -> None:
        # A schedule counts steps of the whole run: N batches that the server has seen are one.
        # (Batches that are begun would not do: their number depends on time, not on arrivals.)
        self._batches += sum(each.batches for each in payloads)
        rounds = self._batches // self.budget.num_workers
        while self.schedule is not None and self._rounds < rounds:
            self.schedule.step()
            self._rounds += 1


def _joined(batches: Sequence[TrainingBatch]) -> TrainingBatch:
    """Return several batches as one; those without samples add nothing."""
    full = [batch for batch in batches if batch[2]]
    if len(full) < 2:
        return full[0] if full else batches[0]
    if not all(isinstance(part, Tensor) for batch in full for part in batch[:2]):
        raise ConfigError(
            "scale_batch joins batches whose inputs and targets are one tensor each; leave it out "
            "of at_switch for other data"
        )
    inputs = torch.cat([inputs for inputs, _, _ in full])
    targets = torch.cat([targets for _, targets, _ in full])
    return inputs, targets, sum(samples for _, _, samples in full)


def _any(presences: Any) -> tuple[bool, ...]:
    return tuple(any(each) for each in zip(*presences, strict=True))
