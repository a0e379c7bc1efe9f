"""Vector balancing: exchange samples of one stratum between workers until their sums agree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freewheel.sharding.samples import Indices

#: Vectors are rounded to multiples of 1 / GRID and held as whole numbers, so that all sums are
#: exact, in whatever order a machine adds them, and the shards are the same everywhere.
GRID = 4096


@dataclass(frozen=True)
class Vectors:
    """What is to be balanced, for some samples: whole numbers held as float64.

    Args:
        own: shape (B, P); its sums are balanced within each stratum by itself.
        shared: shape (B, Q); its sums are balanced over all strata together.
        codes: stratum of each sample, shape (B,).

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.balance import Vectors
        >>> Vectors(np.ones((2, 3)), np.ones((2, 0)), np.zeros(2, np.int32)).codes.tolist()
        [0, 0]
    """

    own: NDArray[np.float64]
    shared: NDArray[np.float64]
    codes: NDArray[np.int32]


def to_grid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round to multiples of 1 / ``GRID`` and return how many of them, as float64.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.balance import to_grid
        >>> to_grid(np.array([1.0, -0.5001])).tolist()
        [4096.0, -2048.0]
    """
    return np.rint(values * GRID)


class Balancer:
    """Keeps each worker's sums and lowers how far they are apart, one chunk of samples at a time.

    With R_w the sum of the vectors of worker w and n_w its size, a sweep lowers

        sum_w |R_w / n_w|^2

    over ``own`` within each stratum plus ``shared`` over all. A step takes one sample of one
    stratum from each worker and deals these samples out again in the best way, which is a linear
    assignment problem with costs R_w . x_i / n_w^2 (R_w without its own sample). The objective
    never rises, and no worker's count of any stratum changes. Sums are carried from chunk to chunk,
    so a later chunk makes up for what an earlier one left.

    Vectors should have mean zero within each stratum where sizes differ: the sums are drawn to 0.
    A sweep takes O(B W (P + Q) + B W^2) time for B samples and W workers.

    Args:
        sizes: samples per worker, shape (W,).
        num_strata: number of strata.
        num_own: P.
        num_shared: Q.

    Example:
        >>> import numpy as np
        >>> from freewheel.sharding.balance import Balancer, Vectors
        >>> values = np.array([[1.0], [2.0], [3.0], [4.0]])
        >>> vectors = Vectors(values, np.empty((4, 0)), np.zeros(4, np.int32))
        >>> owner = np.array([0, 0, 1, 1], dtype=np.int32)
        >>> balancer = Balancer(np.array([2, 2]), num_strata=1, num_own=1, num_shared=0)
        >>> balancer.balance(vectors, owner, sweeps=2, rng=np.random.default_rng(0))
        >>> float(values[owner == 0].sum()), balancer.objective()
        (5.0, 12.5)

    References:
        Lu, Guo, De Sa, "GraB: finding provably better data permutations than random reshuffling"
        (2022) and Cooper et al., "Coordinating distributed example orders for provably accelerated
        training" (2023) balance gradients on line; Chen, Welling, Smola, "Super-samples from kernel
        herding" (2010); Kuhn, "The Hungarian method for the assignment problem" (1955).
    """

    def __init__(self, sizes: Indices, num_strata: int, num_own: int, num_shared: int) -> None:
        workers = len(sizes)
        self._own = np.zeros((num_strata, workers, num_own))
        self._shared = np.zeros((workers, num_shared))
        self._even = bool(sizes.max() - sizes.min() <= 1)
        self._weights = 1.0 / np.maximum(sizes, 1).astype(np.float64) ** 2

    def objective(self) -> float:
        """Return sum_w |R_w / n_w|^2 of what was dealt so far."""
        own = (self._own**2).sum(axis=(0, 2))
        return float(self._weights @ (own + (self._shared**2).sum(axis=1)))

    def balance(
        self, vectors: Vectors, owner: NDArray[np.int32], sweeps: int, rng: np.random.Generator
    ) -> None:
        """Add a chunk of samples to the sums, and exchange them between workers in ``owner``.

        Args:
            vectors: of the chunk's samples.
            owner: the worker of each of them, shape (B,); changed in place.
            sweeps: how often each sample is looked at.
            rng: chooses which samples meet.
        """
        codes = vectors.codes
        np.add.at(self._own, (codes, owner), vectors.own)
        np.add.at(self._shared, owner, vectors.shared)
        for _ in range(sweeps):
            for stratum in np.flatnonzero(np.bincount(codes)):
                for block in _blocks(np.flatnonzero(codes == stratum), owner, rng):
                    self._deal_again(int(stratum), block, vectors, owner)

    def _deal_again(
        self, stratum: int, block: Indices, vectors: Vectors, owner: NDArray[np.int32]
    ) -> None:
        from scipy.optimize import linear_sum_assignment

        workers = owner[block]
        own, shared = vectors.own[block], vectors.shared[block]
        rest_own = self._own[stratum, workers] - own
        rest_shared = self._shared[workers] - shared
        costs = rest_own @ own.T + rest_shared @ shared.T
        if not self._even:
            norms = (own**2).sum(axis=1) + (shared**2).sum(axis=1)
            costs = self._weights[workers][:, None] * (costs + 0.5 * norms)
        _, picks = linear_sum_assignment(costs)
        if (picks == np.arange(len(block))).all():
            return
        self._own[stratum, workers] = rest_own + own[picks]
        self._shared[workers] = rest_shared + shared[picks]
        owner[block[picks]] = workers


def _blocks(members: Indices, owner: NDArray[np.int32], rng: np.random.Generator) -> list[Indices]:
    """Divide the members of a stratum into blocks with at most one sample of each worker."""
    shuffled = members[rng.permutation(len(members))]
    owners = owner[shuffled]
    by_owner = np.argsort(owners, kind="stable")
    counts = np.bincount(owners)
    place = np.arange(len(members)) - np.repeat(np.cumsum(counts) - counts, counts)
    by_block = np.argsort(place, kind="stable")
    ends = np.cumsum(np.bincount(place))[:-1]
    return [block for block in np.split(shuffled[by_owner][by_block], ends) if len(block) > 1]
