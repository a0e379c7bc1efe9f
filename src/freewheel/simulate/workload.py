"""What simulated workers work on: real gradients, or only their cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from freewheel.errors import ConfigError
from freewheel.protocols.at_switch import Changes
from freewheel.protocols.replicas import Evidence, Kind


class Budget:
    """How many steps workers may take: so many together, or so many each.

    Args:
        steps: steps per worker; ``shared``: ``steps * num_workers`` together, whoever takes them,
            so that every protocol does the same work; else each worker takes its own.
        num_workers: initial workers, >= 1.
        shared: see ``steps``.

    Raises:
        ConfigError: a number is out of its range.

    Example:
        >>> from freewheel.simulate import Budget
        >>> budget = Budget(steps=1, num_workers=2)
        >>> budget.take(0), budget.take(0), budget.take(1)
        (True, True, False)
    """

    def __init__(self, steps: int, num_workers: int, shared: bool = True) -> None:
        if num_workers < 1:
            raise ConfigError(f"workers must be >= 1, got {num_workers}")
        if steps < 0:
            raise ConfigError(f"steps must be >= 0, got {steps}")
        self.steps, self.num_workers, self.shared = steps, num_workers, shared
        self.taken = 0
        self._by_rank: Counter[int] = Counter()

    def take(self, rank: int) -> bool:
        """Take one step from the budget; False where there is none left."""
        spent = self.taken if self.shared else self._by_rank[rank]
        if spent >= (self.steps * self.num_workers if self.shared else self.steps):
            return False
        self.taken += 1
        self._by_rank[rank] += 1
        return True

    @property
    def progress(self) -> float:
        """The part of all steps that has been taken, in [0, 1]."""
        return min(1.0, self.taken / max(1, self.steps * self.num_workers))


class Workload(ABC):
    """Data, model and optimizers of a whole run, called by the engine in virtual-time order.

    Attributes:
        num_bytes: of all parameters, P in the formulas of protocols.
        budget: of steps.
    """

    num_bytes: int
    budget: Budget

    @abstractmethod
    def next_batch(self, rank: int) -> int | None:
        """Take the worker's next batch; return its number of samples, or None at the end."""

    @abstractmethod
    def share(self, num_samples: int) -> float:
        """Return the work of a batch of so many samples, as a part of a full batch."""

    @abstractmethod
    def step(self, rank: int) -> Evidence:
        """Do the worker's step on the batch it took."""

    @abstractmethod
    def take_push(self, rank: int, kind: Kind) -> Any:
        """Return what the worker pushes, and start its next push from nothing."""

    @abstractmethod
    def fold(self, payloads: Sequence[Any], weights: Sequence[float], kind: Kind) -> None:
        """Update the server's parameters, as ``protocols.replicas.Fold`` says."""

    @abstractmethod
    def drop(self, payload: Any) -> None:
        """Take note of a push that was handled and not folded."""

    @abstractmethod
    def snapshot(self) -> Any:
        """Return the server's parameters as they are now."""

    @abstractmethod
    def adopt(self, rank: int, snapshot: Any, mix: float) -> None:
        """Move the worker's parameters to the snapshot, by ``mix``."""

    @abstractmethod
    def leave(self, rank: int) -> None:
        """Forget a worker."""

    def measure(self, rank: int) -> Evidence:
        """Return what the protocol's machines need measured after each step of a worker."""
        return {}

    def report(self, rank: int) -> tuple[Evidence, tuple[float, ...]]:
        """Return the evidence and the sketch that a worker reports."""
        return {}, ()

    def push_bytes(self, payload: Any, kind: Kind) -> int:
        """Return the bytes of a push's tensors."""
        return 0 if kind == "predicted" else self.num_bytes

    def answer(self, rank: int, snapshot: Any, pull: bool) -> tuple[Any, int]:
        """Return what a worker is sent with a grant, None for nothing, and the bytes of it.

        Args:
            rank: of the worker.
            snapshot: the server's parameters; None where it did not ask for them.
            pull: whether it asked.
        """
        return snapshot, self.num_bytes if pull else 0

    def switched(self, changes: Changes | None, num_workers: int) -> int:
        """Change rates, momentum and batch as a switch asks; None takes that back.

        Returns:
            Bytes of optimizer state that are handed over beside the parameters.
        """
        return 0

    def norms_sq(self, payloads: Sequence[Any]) -> tuple[list[float], float]:
        """Return the squared norm of each gradient, and of their sum."""
        return [], 0.0


class CostOnly(Workload):
    """No gradients: only batches of so many samples, for thousands of workers.

    Args:
        budget: of all workers.
        num_bytes: of all parameters.
        batch_size: samples in a batch, >= 1.
        shards: samples of one pass of each rank's own shard, cut into batches, the last one
            smaller; None: every batch is full.

    Example:
        >>> from freewheel.simulate import Budget, CostOnly
        >>> work = CostOnly(Budget(3, 1), num_bytes=4000, batch_size=8, shards={0: 12})
        >>> [work.next_batch(0) for _ in range(4)]
        [8, 4, 8, None]
    """

    def __init__(
        self,
        budget: Budget,
        num_bytes: int,
        batch_size: int = 1,
        shards: Mapping[int, int] | None = None,
    ) -> None:
        if num_bytes < 0 or batch_size < 1:
            raise ConfigError(
                f"parameters need >= 0 bytes and a batch >= 1 samples, got {num_bytes} and "
                f"{batch_size}"
            )
        self.num_bytes, self.budget, self.batch_size = num_bytes, budget, batch_size
        self._shards = shards
        self._at: Counter[int] = Counter()

    def next_batch(self, rank: int) -> int | None:
        """Take a batch from the budget."""
        if not self.budget.take(rank):
            return None
        if self._shards is None or rank not in self._shards:
            return self.batch_size
        left = self._shards[rank] - self._at[rank]
        size = min(self.batch_size, left)
        self._at[rank] = 0 if size == left else self._at[rank] + size
        return size

    def share(self, num_samples: int) -> float:
        """Return samples / batch size."""
        return num_samples / self.batch_size

    def step(self, rank: int) -> Evidence:
        """Compute nothing."""
        return {}

    def take_push(self, rank: int, kind: Kind) -> None:
        """Push nothing."""
        return

    def fold(self, payloads: Sequence[Any], weights: Sequence[float], kind: Kind) -> None:
        """Update nothing."""

    def drop(self, payload: Any) -> None:
        """There is nothing to note."""

    def snapshot(self) -> None:
        """There are no parameters."""
        return

    def adopt(self, rank: int, snapshot: Any, mix: float) -> None:
        """There are no parameters."""

    def leave(self, rank: int) -> None:
        """Nothing was kept."""
