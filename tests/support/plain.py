"""Plain single-process PyTorch training, the reference that pipelines and replicas must equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from freewheel.streams.sampler import Sampler


def train_plain(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Callable[[Any, Any], Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int,
    batch_size: int,
    micro_batches: int = 1,
    accumulate: int = 1,
    world_size: int = 1,
    clip_norm: float | None = None,
    schedule: Any = None,
    seed: int = 0,
) -> list[float]:
    """Train in the way of any tutorial; return the loss of each step.

    A step takes the batches of all workers one after the other, each in ``torch.chunk``s, and
    weighs every sample the same.
    """
    samplers = [Sampler(len(x), batch_size, seed, rank, world_size) for rank in range(world_size)]
    losses = []
    for _ in range(steps):
        batches: list[Tensor] = []
        for sampler in samplers:
            drawn = [sampler.next()]
            while len(drawn) < accumulate and not drawn[-1].last_in_epoch:
                drawn.append(sampler.next())
            batches += [batch.indices for batch in drawn if len(batch.indices)]
        losses.append(step_plain(model, x, y, loss, optimizer, batches, micro_batches, clip_norm))
        if schedule is not None:
            schedule.step()
    return losses


def step_plain(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Callable[[Any, Any], Tensor],
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Tensor],
    micro_batches: int,
    clip_norm: float | None,
) -> float:
    """Take one step over these batches."""
    model.train()
    optimizer.zero_grad(set_to_none=True)
    total, seen = sum(len(batch) for batch in batches), 0.0
    for batch in batches:
        for part in torch.chunk(batch, micro_batches):
            value = loss(model(x[part]), y[part])
            (value * (len(part) / total)).backward()
            seen += float(value.detach()) * len(part)
    if clip_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    optimizer.step()
    return seen / total
