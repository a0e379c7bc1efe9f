"""Activation checkpointing: keep a stage's input only, and compute the rest a second time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def checkpointed(stage: nn.Module) -> Callable[[Any], Any]:
    """Return a way to call a stage that keeps its input only until the backward pass.

    The backward pass runs the forward pass again, from the same input and the same state of the
    random generator. Buffers such as the running statistics of BatchNorm are updated once, by the
    first pass. The stage itself, its names and its hooks stay as they are.

    Args:
        stage: a module of one argument.

    Returns:
        A function from the stage's input to its output, with the same gradients.

    References:
        T. Chen, B. Xu, C. Zhang and C. Guestrin, "Training deep nets with sublinear memory cost",
        2016.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from freewheel.models.checkpointing import checkpointed
        >>> stage = nn.Sequential(nn.BatchNorm1d(2), nn.Tanh())
        >>> checkpointed(stage)(torch.rand(4, 2)).sum().backward()
        >>> stage[0].num_batches_tracked.item()
        1
    """

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _unchanged_buffers(stage)

    def run(value: Any) -> Any:
        if not (stage.training and torch.is_grad_enabled()):
            return stage(value)
        return checkpoint(stage, value, use_reentrant=False, context_fn=contexts)

    return run


@contextmanager
def _unchanged_buffers(stage: nn.Module) -> Iterator[None]:
    """Put buffers back at the end of the block to what they were at its beginning."""
    before = [(buffer, buffer.clone()) for buffer in stage.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            # Through .data: autograd must not take this for a change to what it has saved.
            buffer.data.copy_(value)
