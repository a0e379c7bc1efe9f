"""A backward that starts from gradients which came from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Seed(torch.autograd.Function):
    """A number that depends on given tensors by given gradients."""

    @staticmethod
    def forward(ctx: Any, gradients: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.gradients = gradients
        return torch.zeros((), device=outputs[0].device)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        return None, *ctx.gradients


def backward_from(outputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """Add to ``grad`` of all leaves what these gradients of the outputs make of them.

    The numbers are those of ``torch.autograd.backward(outputs, gradients)``, which loads torch's
    symbolic shapes and SymPy, some 40 MB, to compare two shapes.

    Args:
        outputs: each requires a gradient; at least one.
        gradients: as many, each of its output's shape.

    Raises:
        RuntimeError: a shape is another one, or the graph is gone; from torch.

    Example:
        >>> import torch
        >>> from freewheel.runtime.stages.seeding import backward_from
        >>> x = torch.ones(2, requires_grad=True)
        >>> backward_from([3 * x], [torch.tensor([1.0, 10.0])])
        >>> x.grad
        tensor([ 3., 30.])
    """
    _Seed.apply(gradients, *outputs).backward()  # type: ignore[no-untyped-call]  # torch's
