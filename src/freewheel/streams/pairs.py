"""Two MNIST digits side by side; the label is the last digit of their sum.

The label is no linear function of either digit, so a stage that trains alone on one half of the
model cannot solve it: a task on which saved traffic means something.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from freewheel.errors import ConfigError
from freewheel.streams.base import DataSpec, Source, Split, is_repeatable
from freewheel.streams.images import mnist_parts
from freewheel.streams.parts import PARTS_SEED, check_limit
from freewheel.streams.registry import datasets

NUM_VALIDATION_PAIRS = 5_000
NUM_TEST_PAIRS = 10_000


class PairSumSplit:
    """Pairs of images of another split, side by side, with ``(a + b) mod 10`` as the target.

    Args:
        digits: images ``[batch, 1, height, width]`` and int64 labels ``[batch]``.
        pairs: int64 ``[num_samples, 2]``, the numbers of the left and the right image.

    Example:
        >>> import torch
        >>> from freewheel.streams.base import TensorSplit
        >>> from freewheel.streams.pairs import PairSumSplit
        >>> digits = TensorSplit(torch.zeros(3, 1, 28, 28), torch.tensor([7, 8, 9]))
        >>> split = PairSumSplit(digits, torch.tensor([[0, 1], [2, 2]]))
        >>> split.inputs(torch.tensor([0, 1])).shape, split.targets(torch.tensor([0, 1]))
        (torch.Size([2, 1, 28, 56]), tensor([5, 8]))
    """

    def __init__(self, digits: Split, pairs: Tensor) -> None:
        self._digits, self._pairs = digits, pairs
        self.repeatable = is_repeatable(digits)

    def __len__(self) -> int:
        return len(self._pairs)

    def inputs(self, indices: Tensor) -> Any:
        """Return the images ``[batch, 1, height, 2 * width]`` of these pairs."""
        pairs = self._pairs[indices]
        return torch.cat([self._digits.inputs(pairs[:, 0]), self._digits.inputs(pairs[:, 1])], -1)

    def targets(self, indices: Tensor) -> Any:
        """Return the last digits of the sums, int64 ``[batch]``."""
        pairs = self._pairs[indices]
        return (self._digits.targets(pairs[:, 0]) + self._digits.targets(pairs[:, 1])) % 10


@datasets.register("pair_sum")
def pair_sum(limit: int | None = None, seed: int = 0, num_pairs: int = 256_000) -> Source:
    """Two MNIST digits side by side, label (a + b) mod 10.

    Training pairs are drawn by ``seed`` from the 55,000 training images; the 5,000 validation
    pairs (from the 5,000 validation images) and 10,000 test pairs (from the 10,000 test images)
    are the same for every seed. Inputs are float32 ``[batch, 1, 28, 56]``, targets int64
    ``[batch]``.

    Args:
        limit: train on the first so many of the pairs drawn.
        seed: of the training pairs.
        num_pairs: training pairs to draw, at least 1; the default is 4,000 steps of batch 64
            without a repetition. Each costs 16 bytes of memory.

    Raises:
        ConfigError: ``num_pairs`` below 1, or ``limit`` out of range.
        DataError: MNIST is not on this machine, or is damaged.

    Example:
        >>> from freewheel.streams import load
        >>> load("pair_sum", fallback="digits").name in ("pair_sum", "digits")
        True
    """
    if num_pairs < 1:
        raise ConfigError(f"num_pairs must be >= 1, got {num_pairs}")
    if limit is not None:
        check_limit(limit, num_pairs)
    train, validation, test = mnist_parts()
    pairs = _draw(len(train), num_pairs, [PARTS_SEED, 0, seed])[:limit]
    return Source(
        name="pair_sum",
        spec=DataSpec("pair_sum", (1, 28, 56), torch.float32, 10, "classification"),
        train=PairSumSplit(train, pairs),
        validation=PairSumSplit(
            validation, _draw(len(validation), NUM_VALIDATION_PAIRS, [PARTS_SEED, 1])
        ),
        test=PairSumSplit(test, _draw(len(test), NUM_TEST_PAIRS, [PARTS_SEED, 2])),
    )


def _draw(num_images: int, num_pairs: int, seed: list[int]) -> Tensor:
    drawn = np.random.default_rng(seed).integers(num_images, size=(num_pairs, 2), dtype=np.int64)
    return torch.from_numpy(drawn)
