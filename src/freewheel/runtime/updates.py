"""One update of a module's parameters: clipping, optimizer, schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from freewheel.errors import ConfigError
from freewheel.models.stepping import step_of

MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]
MakeSchedule = Callable[[Optimizer], LRScheduler | None]


class Updater:
    """The optimizer of one process, with its schedule.

    A module without trainable parameters has no optimizer, and updates are nothing.

    Args:
        module: whose parameters are updated.
        optimizer: makes an optimizer of the trainable parameters.
        schedule: makes the schedule, or None for a constant rate.
    """

    def __init__(self, module: nn.Module, optimizer: MakeOptimizer, schedule: MakeSchedule) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.optimizer = _checked(optimizer(self.parameters)) if self.parameters else None
        self._step = step_of(self.optimizer) if self.optimizer is not None else None
        self.schedule = schedule(self.optimizer) if self.optimizer is not None else None

    @property
    def lr(self) -> float | None:
        """The rate of the first parameter group, or None without one."""
        return float(self.optimizer.param_groups[0]["lr"]) if self.optimizer is not None else None

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def apply(self, keep: bool = True) -> None:
        """Update the parameters, unless the step is undone; then move the schedule on."""
        if keep:
            self.step_only()
        if self.schedule is not None:
            self.schedule.step()

    def step_only(self) -> None:
        """Update the parameters, and leave the schedule where it is."""
        if self._step is not None:
            self._step()


def _checked(optimizer: Any) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"the optimizer must be a torch.optim.Optimizer, got {optimizer!r}; give a function "
            f"that returns one for a list of parameters"
        )
    return optimizer


def squared_norm(gradients: Iterable[Tensor | None]) -> float:
    """Return the sum of the squares of all numbers in these gradients.

    Example:
        >>> import torch
        >>> from freewheel.runtime.updates import squared_norm
        >>> squared_norm([torch.tensor([3.0, 4.0]), None])
        25.0
    """
    found = [g for g in gradients if g is not None]
    if not found:
        return 0.0
    norms = torch._foreach_norm(found)
    return float(torch.stack([n.double() for n in norms]).square().sum())


def clip(parameters: Iterable[nn.Parameter], total_squared_norm: float, max_norm: float) -> None:
    """Scale gradients so that the norm of the whole model's is at most ``max_norm``.

    The rule is that of ``torch.nn.utils.clip_grad_norm_``: times ``max_norm / (norm + 1e-6)``
    where that is below 1.

    Args:
        parameters: this process's; their ``grad`` is changed.
        total_squared_norm: over all processes.
        max_norm: above 0.
    """
    scale = min(1.0, max_norm / (math.sqrt(total_squared_norm) + 1e-6))
    found = [p.grad for p in parameters if p.grad is not None]
    if scale < 1.0 and found:
        torch._foreach_mul_(found, scale)
