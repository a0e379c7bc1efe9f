"""What every role starts from: its job, the configuration, the pieces, its mail."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from freewheel.config import Config
from freewheel.protocols import Protocol, protocols
from freewheel.runtime.job import Job
from freewheel.runtime.mail import Mail
from freewheel.runtime.pieces import Pieces
from freewheel.streams.base import Source, Split
from freewheel.streams.sampler import Batch, RoundSampler


@dataclass(frozen=True)
class Context:
    """One process's view of its run."""

    job: Job
    config: Config
    pieces: Pieces
    mail: Mail

    def protocol(self) -> Protocol:
        """Return the protocol, with ``[monitor]`` as its guard where it takes one."""
        return make_protocol(self.config)

    @property
    def autocast(self) -> torch.dtype | None:
        """The dtype of autocast, or None."""
        return torch.bfloat16 if self.config.train.autocast == "bf16" else None


def make_protocol(config: Config) -> Protocol:
    """Make the protocol that a configuration names.

    Raises:
        ConfigError: there is none of that name, or it refuses a setting.

    Example:
        >>> from freewheel.config import Config
        >>> from freewheel.runtime.context import make_protocol
        >>> make_protocol(Config()).name
        'vanilla'
    """
    settings = config.protocol.settings
    if config.monitor.name is not None:
        settings.setdefault("guard", {"name": config.monitor.name, **config.monitor.settings})
    return protocols.create(config.protocol_name, settings)


def steps_per_epoch(num_samples: int, batch_size: int, world_size: int, accumulate: int) -> int:
    """Return how many steps take all samples once.

    Example:
        >>> from freewheel.runtime.context import steps_per_epoch
        >>> steps_per_epoch(21, batch_size=8, world_size=1, accumulate=2)
        2
    """
    rounds = math.ceil(num_samples / (batch_size * world_size))
    return math.ceil(rounds / accumulate)


def total_steps(config: Config, per_epoch: int) -> int:
    """Return the length of a run: ``train.steps``, or its epochs (one where neither is given)."""
    if config.train.steps is not None:
        return config.train.steps
    return (config.train.epochs or 1) * per_epoch


def next_step(sampler: RoundSampler, accumulate: int) -> list[Batch]:
    """Return the batches of one step: ``accumulate`` of them, fewer at the end of an epoch."""
    batches = [sampler.next()]
    while len(batches) < accumulate and not batches[-1].last_in_epoch:
        batches.append(sampler.next())
    return batches


def score_batches(split: Split, batch_size: int) -> Iterator[torch.Tensor]:
    """Yield the sample numbers of a part in order, ``batch_size`` at a time."""
    for start in range(0, len(split), batch_size):
        yield torch.arange(start, min(start + batch_size, len(split)))


def scored_part(source: Source) -> Split:
    """Return the part that accuracy is reported on: test, or validation where there is no test."""
    return source.test if len(source.test) else source.validation


def is_due(step: int, every: int, last: int) -> bool:
    """Whether something that happens every so many steps, and at the end, is due after ``step``.

    Example:
        >>> from freewheel.runtime.context import is_due
        >>> [step for step in range(1, 8) if is_due(step, every=3, last=7)]
        [3, 6, 7]
    """
    return step == last or (every > 0 and step % every == 0)


def passed(before: int, now: int, every: int) -> bool:
    """Whether a multiple of ``every`` lies after ``before`` and up to ``now``; 0 means never.

    Example:
        >>> from freewheel.runtime.context import passed
        >>> passed(2, 3, 3), passed(3, 4, 3), passed(3, 9, 3), passed(3, 9, 0)
        (True, False, True, False)
    """
    return every > 0 and now // every > before // every


def describe(source: Source) -> dict[str, Any]:
    """Return what a summary says of the data."""
    return {"name": source.name, "train": len(source.train), "scored": len(scored_part(source))}
