"""Initial values that depend on the run's seed and on the layer, and on nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(seed: int, index: int) -> Iterator[None]:
    """Run a block with PyTorch's CPU generator seeded by (``seed``, ``index``), then put it back.

    The pair is hashed, so that neighbouring seeds and neighbouring layers share no stream of random
    numbers. Generators of other devices are neither read nor changed: modules are built on the CPU.

    Args:
        seed: the run's seed.
        index: which layer (or module) of the whole model is about to be built.

    Example:
        >>> import torch
        >>> from freewheel.models.seeding import seeded
        >>> def draw(seed, index):
        ...     with seeded(seed, index):
        ...         return torch.rand(1).item()
        >>> draw(0, 1) == draw(0, 1), draw(0, 1) == draw(1, 0)
        (True, False)
    """
    digest = hashlib.blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would also reseed the generators of every accelerator.
        torch.default_generator.manual_seed(int.from_bytes(digest, "big") >> 1)
        yield
