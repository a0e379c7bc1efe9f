"""What becomes of buffers (BatchNorm's running means) when workers each have their own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class MeanBuffers:
    """The mean of the buffers that each worker last sent; integers and booleans take the largest.

    Server 0 keeps them. A worker sends its buffers with a push, where they have moved, and a pull
    brings the mean, so that they are equal on all workers after each synchronisation. What a worker
    that has left sent last stays in the mean.

    Args:
        initial: as the model is built.

    Example:
        >>> import torch
        >>> from freewheel.runtime.servers.buffers import MeanBuffers
        >>> buffers = MeanBuffers([torch.zeros(1), torch.tensor(0)])
        >>> buffers.put(0, [torch.ones(1), torch.tensor(3)])
        >>> buffers.put(1, [torch.tensor([3.0]), torch.tensor(2)])
        >>> buffers.mean()
        [tensor([2.]), tensor(3)]
    """

    def __init__(self, initial: Sequence[Tensor]) -> None:
        self._mean = [buffer.detach().clone() for buffer in initial]
        self._of: dict[int, list[Tensor]] = {}
        self._fresh = True

    @property
    def moved(self) -> bool:
        """Whether any worker has sent any."""
        return bool(self._of)

    def fits(self, buffers: Sequence[Tensor]) -> bool:
        """Whether these are shaped as the model's: all of them, or none."""
        return not buffers or [(b.shape, b.dtype) for b in buffers] == [
            (b.shape, b.dtype) for b in self._mean
        ]

    def put(self, rank: int, buffers: Sequence[Tensor]) -> None:
        """Keep what a worker sent."""
        if buffers:
            self._of[rank] = list(buffers)
            self._fresh = False

    def mean(self) -> list[Tensor]:
        """Return the mean; the caller must not write to it."""
        if not self._fresh:
            # Sorted, so that the sum does not depend on who came first.
            sets = [self._of[rank] for rank in sorted(self._of)]
            self._mean = [
                torch.stack(values).mean(0)
                if values[0].is_floating_point()
                else torch.stack(values).amax(0)
                for values in zip(*sets, strict=True)
            ]
            self._fresh = True
        return self._mean
