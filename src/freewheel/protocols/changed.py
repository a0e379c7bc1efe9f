"""An optimizer and its schedule under the changes that a switch asks for, until they are undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from freewheel.protocols.at_switch import Change


class Changed:
    """An optimizer and its schedule, changed until ``undo``.

    Args:
        optimizer: of ``torch.optim``.
        schedule: of it, or None.
        change: what to do.
        num_workers: N, >= 1.

    Example:
        >>> import torch
        >>> from freewheel.protocols.at_switch import Changes
        >>> from freewheel.protocols.changed import Changed
        >>> sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.5, momentum=0.5)
        >>> changed = Changed(sgd, None, Changes("fold_momentum"), num_workers=4)
        >>> sgd.param_groups[0]["lr"], sgd.param_groups[0]["momentum"]
        (1.0, 0.0)
        >>> changed.undo()
        >>> sgd.param_groups[0]["lr"], sgd.param_groups[0]["momentum"]
        (0.5, 0.5)
    """

    def __init__(
        self, optimizer: Optimizer, schedule: Any, change: Change, num_workers: int
    ) -> None:
        self._optimizer, self._schedule, self._change = optimizer, schedule, change
        self._updates = 0
        self._ratios: list[float] = []
        self._momenta: list[float | None] = []
        self._rates: list[float] = []
        for place, group in enumerate(optimizer.param_groups):
            momentum = group.get("momentum")
            ratio, after = change.rates(1.0, float(momentum or 0.0), num_workers)
            self._ratios.append(ratio)
            self._momenta.append(momentum)
            self._scale(place, ratio)
            if momentum is not None:
                group["momentum"] = after
            factor = change.velocity(ratio)
            if factor != 1.0:
                _scale_velocity(optimizer, group["params"], factor)
        # hooks are dear: torch loads its compiler at the first step of an optimizer that has any
        self._hooks = []
        if change.ramps:
            before = optimizer.register_step_pre_hook(self._before)
            self._hooks = [before, optimizer.register_step_post_hook(self._after)]

    def undo(self) -> None:
        """Give rates and momentum back; momentum buffers go on from what they are."""
        for hook in self._hooks:
            hook.remove()
        for place, group in enumerate(self._optimizer.param_groups):
            self._scale(place, 1.0 / self._ratios[place])
            momentum = self._momenta[place]
            if momentum is not None:
                group["momentum"] = momentum

    def _scale(self, place: int, ratio: float) -> None:
        group = self._optimizer.param_groups[place]
        group["lr"] = group["lr"] * ratio
        if "initial_lr" in group:
            group["initial_lr"] *= ratio
        bases = getattr(self._schedule, "base_lrs", None)
        if bases is not None:
            bases[place] *= ratio

    def _before(self, optimizer: Optimizer, *_: Any) -> None:
        ramp = self._change.ramp(self._updates)
        self._rates = [group["lr"] for group in optimizer.param_groups]
        if ramp != 1.0:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * ramp

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        self._updates += 1
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate


def _scale_velocity(optimizer: Optimizer, parameters: Sequence[Tensor], factor: float) -> None:
    for parameter in parameters:
        velocity = optimizer.state.get(parameter, {}).get("momentum_buffer")
        if velocity is not None:
            velocity.mul_(factor)
