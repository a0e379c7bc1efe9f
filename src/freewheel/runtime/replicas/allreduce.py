"""Gradients and buffers of replicas, brought together by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from freewheel.transport.group import Group


class GradientSum:
    """Sums the gradients of all replicas in one flat vector.

    A replica's gradient is that of its samples' share of the mean loss over the samples of all
    replicas, so the sum is the gradient of that mean. A parameter that one replica did not use
    counts as zero there; one that none used keeps ``grad = None`` on all.

    Args:
        group: the replicas.
        parameters: in the same order on all.
        num_beside: further numbers that are summed in the same collective, see ``beside``.

    Attributes:
        beside: write this process's numbers here before ``run``; it leaves their sums here.
    """

    def __init__(
        self, group: Group, parameters: Sequence[nn.Parameter], num_beside: int = 0
    ) -> None:
        self._group = group
        self._parameters = list(parameters)
        wide = any(p.dtype in (torch.float64, torch.complex128) for p in self._parameters)
        sizes = [_as_real(p.detach()).numel() for p in self._parameters]
        device = self._parameters[0].device if self._parameters else torch.device("cpu")
        self._flat = torch.zeros(
            sum(sizes) + len(sizes) + 1 + num_beside,
            dtype=torch.float64 if wide else torch.float32,
            device=device,
        )
        *self._views, self._used, self._word, self.beside = torch.split(
            self._flat, [*sizes, len(sizes), 1, num_beside]
        )

    def run(self, word: float = 0.0) -> float:
        """Replace each parameter's ``grad`` by the sum over the replicas.

        Args:
            word: a number that travels along.

        Returns:
            The sum of all replicas' words.
        """
        self._word.fill_(word)
        self._used.zero_()
        for i, (parameter, view) in enumerate(zip(self._parameters, self._views, strict=True)):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(_as_real(parameter.grad).reshape(-1))
                self._used[i] = 1.0
        self._group.sum(self._flat)
        for view, parameter, used in zip(
            self._views, self._parameters, self._used.tolist(), strict=True
        ):
            if used == 0.0:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            real = _as_real(parameter.grad)
            real.copy_(view.view(real.shape))
        return float(self._word)


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def broadcast_state(group: Group, module: nn.Module) -> None:
    """Give all replicas rank 0's parameters and buffers."""
    for tensor in (*module.parameters(), *module.buffers()):
        whole = tensor.detach().contiguous()
        group.broadcast(_as_real(whole))
        with torch.no_grad():
            tensor.copy_(whole)


def average_buffers(group: Group, module: nn.Module) -> None:
    """Make buffers equal on all replicas: floats become the mean, integers the largest.

    BatchNorm's running statistics thus become the mean over the replicas, and its
    ``num_batches_tracked`` stays an integer.
    """
    for buffer in module.buffers():
        if buffer.is_floating_point():
            total = buffer.to(torch.float64).contiguous()
            group.sum(total)
            buffer.copy_(total / group.world_size)
        elif buffer.dtype in (torch.int32, torch.int64):
            largest = buffer.contiguous()
            group.max(largest)
            buffer.copy_(largest)
