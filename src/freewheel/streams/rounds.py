"""Rounds of batches over epochs, and the cursor of all workers: what the samplers share.

Workers move in rounds: at step k of an epoch each takes its k-th batch. In its last rounds a worker
may have a smaller batch or none; it then gets an empty one and the step still happens, so that
nobody waits and every sample weighs the same. Nothing is communicated: each worker works out the
same plan from the seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from freewheel.errors import ConfigError, DataError
from freewheel.streams.cursor import (
    Cursor,
    Positions,
    Unfinished,
    epoch_order,
    fingerprint,
    without,
)


@dataclass(frozen=True, slots=True)
class Batch:
    """One worker's samples for one step.

    Args:
        indices: int64 ``[batch]``, sample numbers; empty where this worker has none left.
        epoch: from 0.
        step_in_epoch: from 0; the same on all workers at the same round.
        last_in_epoch: the epoch ends with this round.
        num_in_round: samples that all workers together take in this round, at least 1.

    Example:
        >>> from freewheel.streams.sampler import Sampler
        >>> batch = Sampler(5, 3, seed=0, rank=1, world_size=2, shuffle=False).next()
        >>> batch.indices, batch.last_in_epoch, batch.num_in_round
        (tensor([3, 4]), True, 5)
    """

    indices: Tensor
    epoch: int
    step_in_epoch: int
    last_in_epoch: bool
    num_in_round: int


@dataclass(frozen=True, slots=True)
class _EpochPlan:
    """An epoch, or what is left of one, dealt out: the positions of each worker, in order."""

    epoch: int
    pending: Positions
    by_rank: Sequence[Positions]
    rounds_before: int
    num_rounds: int


class RoundSampler(ABC):
    """What both samplers share: rounds, epochs and the cursor. A subclass deals out an epoch.

    Args:
        samples: int64, the sample numbers of an epoch, of all workers together.
        batch_size: of one worker, at least 1.
        seed: of the order, at least 0.
        rank: of this worker.
        world_size: workers in all.
        shuffle: whether each epoch has an order of its own.

    Raises:
        ConfigError: a number is out of its range.
        DataError: there are no samples.
    """

    _plan: _EpochPlan
    _round: int

    def __init__(
        self,
        samples: Positions,
        batch_size: int,
        seed: int,
        rank: int,
        world_size: int,
        shuffle: bool,
    ) -> None:
        if batch_size < 1:
            raise ConfigError(f"batch_size must be >= 1, got {batch_size}")
        if world_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(
                f"rank must be from 0 to world_size - 1, got rank {rank} of {world_size}"
            )
        if seed < 0:
            raise ConfigError(f"seed must be >= 0, got {seed}")
        if len(samples) == 0:
            raise DataError("there are no samples to train on; at least 1 is needed")
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self._samples, self._seed, self._shuffle = samples, seed, shuffle
        self._identity = {
            "num_samples": len(samples),
            "seed": seed,
            "shuffle": shuffle,
            "samples": fingerprint(samples),
        }
        self._known_order: tuple[int, Positions] | None = None
        self._go_on_from(Cursor((), 0))

    @property
    def num_samples(self) -> int:
        """Samples in an epoch, of all workers together."""
        return len(self._samples)

    @cached_property
    def steps_per_epoch(self) -> int:
        """Rounds in a whole epoch; the first after a load may have fewer left."""
        return self._plan_of(0, np.arange(self.num_samples), 0).num_rounds

    @property
    def steps_done(self) -> int:
        """Steps taken since this sampler was made or last loaded."""
        return self._steps_done

    def next(self) -> Batch:
        """Return this worker's next batch; epochs follow one another without end."""
        while self._round == self._plan.num_rounds:
            self._plan = next(self._plans)
            self._round = 0
        batch = self._batch(self._round)
        self._round += 1
        self._steps_done += 1
        return batch

    def peek(self) -> Batch | None:
        """Return what ``next`` will, without moving on; None where that begins another epoch."""
        return None if self._round == self._plan.num_rounds else self._batch(self._round)

    def _batch(self, k: int) -> Batch:
        plan = self._plan
        start, stop = k * self.batch_size, (k + 1) * self.batch_size
        mine = plan.by_rank[self.rank][start:stop]
        order = self._order(plan.epoch)
        return Batch(
            indices=torch.from_numpy(self._samples[order[mine]]),
            epoch=plan.epoch,
            step_in_epoch=plan.rounds_before + k,
            last_in_epoch=k + 1 == plan.num_rounds,
            num_in_round=sum(len(share[start:stop]) for share in plan.by_rank),
        )

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.next()

    def state_dict(self) -> dict[str, Any]:
        """Return the cursor of all workers, which are taken to have done as many steps as this one.

        Plain numbers and strings; the same on every rank. Where workers do not keep in step, ask
        ``state_at`` of any one of them.
        """
        return self.state_at([self._steps_done] * self.world_size)

    def state_at(self, steps_done: Sequence[int]) -> dict[str, Any]:
        """Return the cursor of all workers, each having done so many steps.

        Args:
            steps_done: one number a rank, counted since this sampler was made or last loaded.

        Returns:
            What ``load_state_dict`` of a sampler of any world size goes on from.

        Raises:
            ConfigError: not one number for each rank, or a negative one.

        Example:
            >>> from freewheel.streams.sampler import Sampler
            >>> ranks = [Sampler(6, 1, seed=0, rank=rank, world_size=2) for rank in range(2)]
            >>> taken = [ranks[0].next(), ranks[0].next(), ranks[1].next()]
            >>> rest = Sampler(6, 6, seed=0)
            >>> rest.load_state_dict(ranks[0].state_at([2, 1]))
            >>> left = rest.next().indices.tolist()
            >>> sorted(left + [int(batch.indices) for batch in taken])
            [0, 1, 2, 3, 4, 5]
        """
        if len(steps_done) != self.world_size or min(steps_done) < 0:
            raise ConfigError(
                f"one number of steps >= 0 for each of {self.world_size} ranks is needed, got "
                f"{list(steps_done)}"
            )
        left = list(steps_done)
        unfinished: list[Unfinished] = []
        for part in self._start.unfinished:
            plan = self._plan_of(part.epoch, part.pending, part.rounds_done)
            left = self._note(plan, left, unfinished)
        # Epochs that all have finished need no look.
        finished = min(left) // self.steps_per_epoch
        epoch = self._start.next_epoch + finished
        left = [steps - finished * self.steps_per_epoch for steps in left]
        while any(left):
            plan = self._plan_of(epoch, np.arange(self.num_samples), 0)
            left = self._note(plan, left, unfinished)
            epoch += 1
        return Cursor(tuple(unfinished), epoch).state_dict(self._identity)

    def _note(self, plan: _EpochPlan, steps: list[int], unfinished: list[Unfinished]) -> list[int]:
        """Note what is pending of an epoch after so many steps; return the steps left over."""
        rounds = [min(left, plan.num_rounds) for left in steps]
        taken = [
            share[: done * self.batch_size]
            for share, done in zip(plan.by_rank, rounds, strict=True)
        ]
        pending = without(self.num_samples, plan.pending, taken)
        if len(pending):
            unfinished.append(Unfinished(plan.epoch, pending, plan.rounds_before + min(rounds)))
        return [left - done for left, done in zip(steps, rounds, strict=True)]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a cursor, whatever the number of workers was when it was saved.

        Args:
            state: what ``state_dict`` or ``state_at`` gave on any rank.

        Raises:
            CheckpointError: the cursor is malformed, or is that of other data or another seed.
        """
        self._go_on_from(Cursor.from_state(state, self._identity))

    def _go_on_from(self, cursor: Cursor) -> None:
        self._start = cursor
        self._steps_done = 0
        self._plans = self._walk(cursor)
        self._plan = next(self._plans)
        self._round = 0

    def _walk(self, cursor: Cursor) -> Iterator[_EpochPlan]:
        for part in cursor.unfinished:
            yield self._plan_of(part.epoch, part.pending, part.rounds_done)
        epoch = cursor.next_epoch
        while True:
            yield self._plan_of(epoch, np.arange(self.num_samples), 0)
            epoch += 1

    def _plan_of(self, epoch: int, pending: Positions, rounds_before: int) -> _EpochPlan:
        members = self._order(epoch)[pending]
        by_rank = [pending[picked] for picked in self._deal(members)]
        num_rounds = max(-(-len(share) // self.batch_size) for share in by_rank)
        return _EpochPlan(epoch, pending, by_rank, rounds_before, num_rounds)

    def _order(self, epoch: int) -> Positions:
        if self._known_order is None or self._known_order[0] != epoch:
            order = epoch_order(self.num_samples, self._seed, epoch, self._shuffle)
            self._known_order = (epoch, order)
        return self._known_order[1]

    @abstractmethod
    def _deal(self, members: Positions) -> Sequence[Positions]:
        """Deal out what is pending of an epoch.

        Args:
            members: int64, places in ``samples`` of what is pending, in the epoch's order.

        Returns:
            For each rank the places in ``members`` that are its own, in the order to take them.
        """
