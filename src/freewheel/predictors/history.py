"""What a stage remembers of its own training, within a stated amount of memory."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from freewheel.errors import CheckpointError
from freewheel.predictors.base import Predictor, check_state, is_finite, take, working_dtype


class History:
    """Snapshots, or window means, of a flat parameter vector, with losses and norms beside them.

    One snapshot is taken per ``every`` observations: the last of them, or with ``mean`` their
    mean, dated with their mean clock rounded down. Snapshots never outgrow ``max_copies``: the
    oldest gives way. Losses and norms keep their last ``max_points`` values.

    Args:
        max_copies: bound on memory, in copies of the parameters, >= 1 (2 with ``mean``, which
            needs one for the mean under way).
        every: observations per snapshot, >= 1.
        mean: keep means rather than single states.
        max_points: losses, and values of each norm, that are kept, >= 1.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> import torch
        >>> from freewheel.predictors import History
        >>> history = History(max_copies=2)
        >>> for clock in range(5):
        ...     history.observe(clock, torch.full((3,), float(clock)), loss=1.0 / (clock + 1))
        >>> history.clocks, history.summary()["loss_last"]
        ((3, 4), 0.2)
    """

    def __init__(
        self,
        max_copies: int = 8,
        every: int = 1,
        mean: bool = False,
        max_points: int = 256,
    ) -> None:
        if max_copies < 1 + mean:
            raise ValueError(f"max_copies must be >= {1 + mean}, got {max_copies}")
        if every < 1 or max_points < 1:
            raise ValueError(f"every and max_points must be >= 1, got {every} and {max_points}")
        self.max_copies, self.every, self.mean, self.max_points = (
            max_copies,
            every,
            mean,
            max_points,
        )
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self._clocks: list[int] = []
        self._states: list[Tensor] = []
        self._sum: Tensor | None = None
        self._num_summed = self._clock_sum = 0
        self._first_clock: int | None = None
        self._last_clock: int | None = None
        self._losses: deque[tuple[int, float]] = deque(maxlen=self.max_points)
        self._norms: dict[str, deque[tuple[int, float]]] = {}
        self.num_observed = 0
        self.num_non_finite = 0

    @property
    def copies(self) -> float:
        """Parameter copies that it holds at most."""
        return float(self.max_copies)

    @property
    def num_bytes(self) -> int:
        """Bytes of parameter copies that it holds now."""
        held = self._states if self._sum is None else [*self._states, self._sum]
        return sum(state.numel() * state.element_size() for state in held)

    @property
    def clocks(self) -> tuple[int, ...]:
        """Clocks of the snapshots, oldest first."""
        return tuple(self._clocks)

    @property
    def states(self) -> tuple[Tensor, ...]:
        """The snapshots [P], oldest first: not to be written to."""
        return tuple(self._states)

    @property
    def losses(self) -> tuple[tuple[int, float], ...]:
        """The losses kept, each with its clock, oldest first."""
        return tuple(self._losses)

    @property
    def norms(self) -> dict[str, tuple[tuple[int, float], ...]]:
        """The norms kept, by name, each with its clock, oldest first."""
        return {name: tuple(values) for name, values in self._norms.items()}

    def observe(
        self,
        clock: int,
        state: Tensor | None = None,
        loss: float | None = None,
        norms: Mapping[str, float] | None = None,
    ) -> None:
        """Take note of one step.

        A loss or norm that is NaN or infinite is counted in ``num_non_finite`` and left out.

        Args:
            clock: local steps finished; larger than in the call before.
            state: the flat parameters [P], floating point; copied. None where only losses and
                norms are to be noted.
            loss: of the step.
            norms: any named numbers, such as the gradient's norm.

        Raises:
            ValueError: the clock does not grow, or the state is not flat or has changed its shape.
            NonFiniteError: a value of the state is NaN or infinite. Nothing was taken note of.
        """
        if state is not None:
            state = state.detach()
            like = (
                self._sum if self._sum is not None else self._states[-1] if self._states else None
            )
            check_state(clock, state, self._last_clock, like)
        elif self._last_clock is not None and clock <= self._last_clock:
            raise ValueError(
                f"clock must grow with each observation, got {clock} after {self._last_clock}; "
                "call roll_back() after a roll-back"
            )
        self.num_observed += 1
        self._first_clock = clock if self._first_clock is None else self._first_clock
        self._last_clock = clock
        if state is not None:
            self._remember(clock, state)
        if loss is not None:
            self._note(self._losses, clock, loss)
        for name, value in (norms or {}).items():
            self._note(self._norms.setdefault(name, deque(maxlen=self.max_points)), clock, value)

    def _note(self, values: deque[tuple[int, float]], clock: int, value: float) -> None:
        if math.isfinite(value):
            values.append((clock, float(value)))
        else:
            self.num_non_finite += 1

    def _remember(self, clock: int, state: Tensor) -> None:
        self._num_summed += 1
        self._clock_sum += clock
        state = state.to(working_dtype(state.dtype))
        if self.mean and self.every > 1:
            self._sum = state.clone() if self._sum is None else self._sum.add_(state)
        if self._num_summed < self.every:
            return
        if self._sum is None:
            self._keep(clock, state)
        else:
            self._keep(self._clock_sum // self._num_summed, self._sum.div_(self._num_summed))
        self._sum, self._num_summed, self._clock_sum = None, 0, 0

    def _keep(self, clock: int, state: Tensor) -> None:
        room = self.max_copies - (1 if self.mean else 0)
        if len(self._states) == room:
            oldest = self._states.pop(0)
            self._clocks.pop(0)
            kept = oldest.copy_(state) if oldest.dtype == state.dtype else state.clone()
        else:
            kept = state.clone()
        self._states.append(kept)
        self._clocks.append(clock)

    def roll_back(self, clock: int) -> None:
        """Forget what came after ``clock``; a mean under way is dropped.

        Args:
            clock: the clock gone back to.
        """
        kept = [index for index, its_clock in enumerate(self._clocks) if its_clock <= clock]
        self._clocks = [self._clocks[index] for index in kept]
        self._states = [self._states[index] for index in kept]
        self._sum, self._num_summed, self._clock_sum = None, 0, 0
        for values in (self._losses, *self._norms.values()):
            while values and values[-1][0] > clock:
                values.pop()
        if self._last_clock is not None:
            self._last_clock = min(self._last_clock, clock)
        if self._first_clock is not None and self._first_clock > clock:
            self._first_clock = self._last_clock = None

    def feed(self, predictor: Predictor, until: int | None = None) -> None:
        """Show the snapshots to a predictor, oldest first.

        Args:
            predictor: reset first.
            until: the last clock to show; all of them when None.
        """
        predictor.reset()
        for clock, state in zip(self._clocks, self._states, strict=True):
            if until is None or clock <= until:
                predictor.observe(clock, state)

    def straightness(self) -> float | None:
        """Return how straight the path of the snapshots is: 1 for a line, near 0 for noise.

        .. math:: \\|x_n - x_0\\| / \\sum_i \\|x_{i+1} - x_i\\|

        Straight paths are what prediction can pay on.

        Returns:
            The ratio, or None with fewer than two snapshots or without any move.
        """
        moves = [
            float(torch.linalg.vector_norm(after - before))
            for before, after in zip(self._states, self._states[1:], strict=False)
        ]
        path = sum(moves)
        if path == 0.0 or not math.isfinite(path):
            return None
        return float(torch.linalg.vector_norm(self._states[-1] - self._states[0])) / path

    def summary(self) -> dict[str, float | int | None]:
        """Return plain numbers for the report; None where there is nothing to say.

        Returns:
            Counts, clocks, memory, the loss (last, mean, lowest of those kept), the norm of the
            newest snapshot and of its move from the one before, ``straightness``, and the last
            value of each norm as ``norm.<name>``.
        """
        losses = [value for _, value in self._losses]
        moved = (
            float(torch.linalg.vector_norm(self._states[-1] - self._states[-2]))
            if len(self._states) > 1
            else None
        )
        return {
            "num_observed": self.num_observed,
            "num_snapshots": len(self._states),
            "num_non_finite": self.num_non_finite,
            "copies": self.copies,
            "num_bytes": self.num_bytes,
            "first_clock": self._first_clock,
            "last_clock": self._last_clock,
            "loss_last": losses[-1] if losses else None,
            "loss_mean": sum(losses) / len(losses) if losses else None,
            "loss_lowest": min(losses) if losses else None,
            "state_norm": (
                float(torch.linalg.vector_norm(self._states[-1])) if self._states else None
            ),
            "move_norm": moved,
            "straightness": self.straightness(),
            **{f"norm.{name}": kept[-1][1] for name, kept in self._norms.items() if kept},
        }

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values for a checkpoint, sharing no memory with this object."""
        return {
            "clocks": list(self._clocks),
            "states": torch.stack(self._states) if self._states else torch.empty(0, 0),
            "sum": torch.empty(0) if self._sum is None else self._sum.clone(),
            "num_summed": self._num_summed,
            "clock_sum": self._clock_sum,
            "first_clock": self._first_clock,
            "last_clock": self._last_clock,
            "losses": [list(point) for point in self._losses],
            "norms": {name: [list(p) for p in kept] for name, kept in self._norms.items()},
            "num_observed": self.num_observed,
            "num_non_finite": self.num_non_finite,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave, from a history of the same settings.

        Raises:
            CheckpointError: it does not fit, or holds a NaN or infinite value.
        """
        names = ("clocks", "states", "sum", "num_summed", "clock_sum", "first_clock", "last_clock")
        more = ("losses", "norms", "num_observed", "num_non_finite")
        clocks, states, total, num_summed, clock_sum, first, last = take(
            {key: value for key, value in state.items() if key not in more}, *names
        )
        losses, norms, num_observed, num_non_finite = take(
            {key: value for key, value in state.items() if key in more}, *more
        )
        if len(clocks) != len(states) or len(clocks) > self.max_copies - (1 if self.mean else 0):
            raise CheckpointError(
                f"{len(states)} snapshots with {len(clocks)} clocks do not fit a history of "
                f"{self.max_copies} copies; load it with the settings that it was saved with"
            )
        if not (is_finite(states) and is_finite(total)):
            raise CheckpointError("a saved history holds a NaN or infinite value; it was refused")
        self.reset()
        self._clocks = [int(clock) for clock in clocks]
        self._states = [row.clone() for row in states]
        self._num_summed, self._clock_sum = int(num_summed), int(clock_sum)
        self._sum = total.clone() if self.mean and self.every > 1 and num_summed else None
        self._first_clock, self._last_clock = first, last
        self._losses.extend((int(clock), float(value)) for clock, value in losses)
        for name, points in norms.items():
            kept = self._norms.setdefault(name, deque(maxlen=self.max_points))
            kept.extend((int(clock), float(value)) for clock, value in points)
        self.num_observed, self.num_non_finite = int(num_observed), int(num_non_finite)
