"""One server's part of the parameters: folds of pushes into it, and snapshots of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from freewheel.models.stepping import step_of
from freewheel.protocols.replicas import Kind
from freewheel.runtime.servers.momentum import How, correct, correct_group
from freewheel.runtime.servers.part_optimizer import keep_part
from freewheel.runtime.servers.parts import Part, check_trainable, size_of


class ServedPart:
    """Holds a part of the parameters with its optimizer; every method is exact and in place.

    Args:
        parameters: the whole model's trainable ones, with their initial values.
        part: what this server holds of them.
        optimizer: of all ``parameters``, cut down here; None where workers have their own.
        whole: the part's tensors keep their shapes, for an optimizer that needs them.

    Attributes:
        size: elements in the part, and in each payload and snapshot.
        pieces: the parameters, one a slice.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        part: Part,
        optimizer: Optimizer | None,
        whole: bool,
    ) -> None:
        check_trainable(parameters)
        self.part, self.size = part, size_of(part)
        self.dtype = parameters[0].dtype
        self.optimizer = optimizer
        self._step = step_of(optimizer) if optimizer is not None else None
        if optimizer is not None:
            self.pieces = keep_part(optimizer, parameters, part, whole)
        else:
            self.pieces = [
                nn.Parameter(parameters[s.parameter].detach().reshape(-1)[s.start : s.stop].clone())
                for s in part
            ]
        self._sizes = [piece.numel() for piece in self.pieces]
        self._flat = [piece.detach().view(-1) for piece in self.pieces]
        self._snapshots = Buffers(self.size, self.dtype)
        self._momentum: tuple[How, int] = ("keep", 1)

    def move(self, vectors: Sequence[Tensor], weights: Sequence[float], kind: Kind) -> None:
        """Fold deltas or parameters in, as ``protocols.replicas.Fold`` says.

        Args:
            vectors: ``[size]`` each; the first may be written to.
            weights: as many.
            kind: what the vectors are.
        """
        update = combined(vectors, weights)
        parts = list(torch.split(update, self._sizes))
        with torch.no_grad():
            if kind == "delta":
                torch._foreach_add_(self._flat, parts)
                return
            rest = 1.0 - sum(weights)
            # Rounding may leave a rest of 1e-16 where the weights make up the whole.
            if rest > 1e-9:
                torch._foreach_add_(parts, self._flat, alpha=rest)
            torch._foreach_copy_(self._flat, parts)

    def set_gradient(self, gradient: Tensor, absent: frozenset[int] = frozenset()) -> None:
        """Make ``[size]`` numbers the gradient, without a copy; None for absent parameters."""
        for piece, slice_, part in zip(
            self.pieces, self.part, torch.split(gradient, self._sizes), strict=True
        ):
            if slice_.parameter in absent:
                piece.grad = None
            else:
                piece.grad = part if piece.dim() == 1 else part.view(piece.shape)

    def squares(self) -> float:
        """Return the squared norm of the gradient of this part."""
        grads = [piece.grad for piece in self.pieces if piece.grad is not None]
        return sum(float(norm.double().square()) for norm in torch._foreach_norm(grads))

    def clip(self, max_norm: float, other_squares: float | None = None) -> None:
        """Clip the gradient as ``torch.nn.utils.clip_grad_norm_`` does over the whole model."""
        if other_squares is None:
            nn.utils.clip_grad_norm_(self.pieces, max_norm)
            return
        total = torch.tensor((self.squares() + other_squares) ** 0.5, dtype=self.dtype)
        nn.utils.clip_grads_with_norm_(self.pieces, max_norm, total)

    def step(self) -> None:
        """Let the optimizer update the part by its gradient."""
        if self._step is not None:
            self._step()

    def snapshot(self) -> Tensor:
        """Return a copy ``[size]`` of the part, in memory that nobody else uses any more."""
        out = self._snapshots.take()
        torch.cat(self._flat, out=out)
        return out

    def load(self, values: Tensor) -> None:
        """Set the part to ``[size]`` numbers."""
        with torch.no_grad():
            torch._foreach_copy_(self._flat, list(torch.split(values, self._sizes)))

    def correct_momentum(self, how: How, num_workers: int) -> None:
        """Take off the momentum that asynchrony adds; also from what workers change later."""
        if self.optimizer is not None:
            correct(self.optimizer, how, num_workers)
            self._momentum = (how, num_workers)

    def set_options(self, options: Sequence[Mapping[str, Any]]) -> None:
        """Set what a worker's scheduler, or the worker, has changed in each parameter group."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        for group, changed in zip(groups, options, strict=False):
            for name, value in changed.items():
                # a tuple, such as Adam's betas, is a list on the wire
                group[name] = tuple(value) if isinstance(value, list) else value
            if changed:
                correct_group(group, *self._momentum)


def combined(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return ``sum_i weights[i] * vectors[i]`` in the memory of a vector, added in that order.

    The numbers are those of ``aggregation.tensors.weighted_sum``, bit for bit.

    Example:
        >>> import torch
        >>> from freewheel.runtime.servers.served_part import combined
        >>> combined([torch.tensor([1.0]), torch.tensor([5.0])], [0.75, 0.25])
        tensor([2.])
    """
    total: Tensor | None = None
    for vector, weight in zip(vectors, weights, strict=True):
        if weight == 0.0:
            continue  # its NaN may not spread: 0 * NaN is NaN
        if total is not None:
            total.add_(vector, alpha=weight)
        else:
            total = vector if weight == 1.0 else vector.mul_(weight)
    return vectors[0].zero_() if total is None else total


class Buffers:
    """Hands out tensors of one size, and takes memory back that nobody refers to any more.

    A link may still be sending what it was given, so memory cannot simply be written again; taking
    new memory for each message costs more than the copy into it.

    Args:
        size: elements of each.
        dtype: of each.
    """

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self._size, self._dtype = size, dtype
        self._memory: list[np.ndarray[tuple[int], np.dtype[np.uint8]]] = []

    def take(self) -> Tensor:
        """Return a tensor ``[size]`` of undefined values."""
        for memory in self._memory:
            # One reference from the list, one from the loop, one from the call: a tensor over this
            # memory would hold a fourth.
            if sys.getrefcount(memory) == 3:
                return self._over(memory)
        memory = np.empty(self._size * self._dtype.itemsize, dtype=np.uint8)
        self._memory.append(memory)
        return self._over(memory)

    def _over(self, memory: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Tensor:
        return torch.from_numpy(memory).view(self._dtype)
