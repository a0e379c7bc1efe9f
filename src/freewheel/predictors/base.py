"""The interface of predictors, their registry, and the checks that all of ours share.

A predictor watches one stage's own parameters, as one flat vector, and says what they will be
``horizon`` local steps later. It sees no gradient, no data and no message: it is pure and
deterministic, so that both ends of a link that feed it the same states hold the same prediction.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from freewheel.errors import CheckpointError, ConfigError, NonFiniteError
from freewheel.registry import Registry


@runtime_checkable
class Predictor(Protocol):
    """Predicts a flat parameter vector from the ones seen before.

    Attributes:
        copies: parameter copies that it holds at most, its memory in units of P numbers.
        ready: whether it has seen enough to extrapolate; until then it predicts the last state.
        num_refused: predictions that were not finite and were answered with the last state.
    """

    num_refused: int

    @property
    def copies(self) -> float:
        """Parameter copies that it holds at most."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it has seen enough to extrapolate."""
        ...

    def observe(self, clock: int, state: Tensor) -> None:
        """Take note of ``state`` [P] (floating point) as it was after ``clock`` local steps."""
        ...

    def predict(self, horizon: int) -> Tensor:
        """Return the state [P] expected ``horizon`` steps after the last one observed."""
        ...

    def reset(self) -> None:
        """Forget every observation (after a roll-back, or a jump that is no training)."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return everything observed that matters: tensors and plain values, for a checkpoint."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave, from a predictor of the same settings."""
        ...


#: Coordinates per chunk.
CHUNK = 65_536

predictors: Registry[Predictor] = Registry(kind="predictor", group="freewheel.predictors")


def check_horizon(horizon: int) -> int:
    """Return ``horizon`` if it is a number of steps.

    Raises:
        ConfigError: it is no whole number, or is negative.

    Example:
        >>> from freewheel.predictors.base import check_horizon
        >>> check_horizon(3)
        3
    """
    if isinstance(horizon, bool) or not isinstance(horizon, int):
        raise ConfigError(f"horizon must be a whole number of steps, got {horizon!r}")
    if horizon < 0:
        raise ConfigError(f"horizon must be >= 0 steps, got {horizon}; use 0 for no prediction")
    return horizon


def is_finite(state: Tensor) -> bool:
    """Return whether no value is NaN or infinite, in one pass and without a temporary copy.

    Example:
        >>> import torch
        >>> from freewheel.predictors.base import is_finite
        >>> is_finite(torch.tensor([1.0, float("nan")])), is_finite(torch.zeros(0))
        (False, True)
    """
    if state.numel() == 0:
        return True
    low, high = torch.aminmax(state)  # a NaN anywhere makes both NaN
    return math.isfinite(float(low)) and math.isfinite(float(high))


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the precision that states of ``dtype`` are kept and computed in: 32 bits or more."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_state(clock: int, state: Tensor, last_clock: int | None, last: Tensor | None) -> None:
    """Refuse what cannot be the next state of a history.

    Args:
        clock: local steps finished.
        state: the flat parameters, [P], floating point.
        last_clock: the clock observed before, or None.
        last: the state observed before, or None.

    Raises:
        ValueError: ``state`` is no flat floating-point vector, or not like the one before, or
            ``clock`` does not come after ``last_clock``.
        NonFiniteError: a value is NaN or infinite.
    """
    if state.dim() != 1 or not state.dtype.is_floating_point:
        raise ValueError(
            f"a state must be a flat floating-point tensor [P], got {tuple(state.shape)} of "
            f"{state.dtype}; flatten and concatenate the parameters first"
        )
    if last is not None and (state.shape != last.shape or state.device != last.device):
        raise ValueError(
            f"the state has {state.numel()} values on {state.device}, the ones before had "
            f"{last.numel()} on {last.device}; call reset() when the parameters change shape"
        )
    if last_clock is not None and clock <= last_clock:
        raise ValueError(
            f"clock must grow with each observation, got {clock} after {last_clock}; "
            "call reset() after a roll-back"
        )
    if not is_finite(state):
        raise NonFiniteError(
            f"the state at clock {clock} has a NaN or infinite value; it was refused and the "
            "history is unchanged: roll back to the last finite state"
        )


def chunks(size: int) -> Iterator[slice]:
    """Yield slices that cover ``size`` coordinates, each small enough to stay in a core's cache.

    Passes over a chunk at a time need no temporary copy of the parameters, and read memory once.

    Example:
        >>> from freewheel.predictors.base import chunks
        >>> [(part.start, part.stop) for part in chunks(70_000)]
        [(0, 65536), (65536, 70000)]
    """
    for start in range(0, size, CHUNK):
        yield slice(start, min(start + CHUNK, size))


def take(state: Mapping[str, Any], *keys: str) -> list[Any]:
    """Return the values of exactly these keys.

    Raises:
        CheckpointError: a key is missing or unknown.

    Example:
        >>> from freewheel.predictors.base import take
        >>> take({"a": 1, "b": 2}, "b", "a")
        [2, 1]
    """
    if set(state) != set(keys):
        raise CheckpointError(
            f"a state with the keys {sorted(keys)} was expected, got {sorted(state)}; it was saved "
            "by something else or with other settings"
        )
    return [state[key] for key in keys]


class Damping:
    r"""How far to extrapolate for a horizon: a geometric sum, cut off at a cap.

    .. math:: S(h) = \sum_{j=1}^{\min(h, cap)} \gamma^j

    so that ``gamma = 1`` without a cap is ``h`` itself.

    Args:
        gamma: damping per step, in (0, 1].
        cap: longest horizon that is extrapolated, in steps; None for no limit.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> from freewheel.predictors.base import Damping
        >>> Damping(0.5)(3), Damping(1.0, cap=4)(10)
        (0.875, 4.0)
    """

    def __init__(self, gamma: float = 1.0, cap: int | None = None) -> None:
        if not 0.0 < gamma <= 1.0:
            raise ValueError(f"gamma must lie in (0, 1], got {gamma}; 1 means no damping")
        if cap is not None and cap < 1:
            raise ValueError(f"cap must be >= 1 step, got {cap}; leave it out for no cap")
        self.gamma, self.cap = gamma, cap

    def __call__(self, horizon: float) -> float:
        """Return S(horizon)."""
        steps = horizon if self.cap is None else min(horizon, self.cap)
        if self.gamma == 1.0:
            return float(steps)
        faded: float = self.gamma**steps
        return self.gamma * (1.0 - faded) / (1.0 - self.gamma)


class BasePredictor(ABC):
    """What our predictors share: the checks, and the cases in which the last state is the answer.

    A subclass keeps what it needs in ``_absorb`` and computes in ``_extrapolate``. ``predict``
    gives the last observed state, bit for bit, for horizon 0, while fewer than ``needed`` states
    have been seen, and where the extrapolation is not finite (counted in ``num_refused``).
    """

    #: Observations without which it cannot extrapolate.
    needed = 1

    def __init__(self) -> None:
        self.num_refused = 0
        self._dtype = torch.float32
        self.reset()

    @property
    @abstractmethod
    def copies(self) -> float:
        """Parameter copies that it holds at most."""

    @property
    @abstractmethod
    def num_observed(self) -> int:
        """Observations that it remembers."""

    @property
    @abstractmethod
    def last(self) -> Tensor | None:
        """The state observed last, in working precision, or None."""

    @property
    @abstractmethod
    def last_clock(self) -> int | None:
        """The clock observed last, or None."""

    @property
    def ready(self) -> bool:
        """Whether it has seen enough to extrapolate."""
        return self.num_observed >= self.needed

    def observe(self, clock: int, state: Tensor) -> None:
        """Take note of a state; the tensor is copied, the caller may go on to write to it.

        Args:
            clock: local steps finished; larger than in the call before.
            state: the flat parameters, [P], floating point; P may be 0.

        Raises:
            ValueError: the clock does not grow, or the state is not flat or has changed its shape.
            NonFiniteError: a value is NaN or infinite. Nothing was taken note of.
        """
        state = state.detach()
        check_state(clock, state, self.last_clock, self.last)
        self._dtype = state.dtype
        self._absorb(clock, state.to(working_dtype(state.dtype)))

    def predict(self, horizon: int) -> Tensor:
        """Return the expected state, a new tensor of the dtype observed.

        Args:
            horizon: local steps after the last observation, >= 0.

        Returns:
            A tensor [P], always finite.

        Raises:
            ConfigError: the horizon is negative or no whole number.
            ValueError: nothing has been observed.
        """
        check_horizon(horizon)
        last = self.last
        if last is None:
            raise ValueError("nothing has been observed yet; call observe() before predict()")
        if horizon > 0 and self.ready and last.numel() > 0:
            predicted = self._extrapolate(horizon).to(self._dtype)
            if is_finite(predicted):
                return predicted
            self.num_refused += 1
        return last.to(self._dtype, copy=True)

    @abstractmethod
    def reset(self) -> None:
        """Forget every observation."""

    @abstractmethod
    def _absorb(self, clock: int, state: Tensor) -> None:
        """Keep what is needed of a checked state; it must be copied if it is kept."""

    @abstractmethod
    def _extrapolate(self, horizon: int) -> Tensor:
        """Return a new tensor for ``horizon >= 1``, with at least ``needed`` states seen."""

    def state_dict(self) -> dict[str, Any]:
        """Return tensors and plain values for a checkpoint, sharing no memory with this object."""
        return {
            "dtype": str(self._dtype).removeprefix("torch."),
            "num_refused": self.num_refused,
            **self._state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave.

        Raises:
            CheckpointError: it comes from another kind of predictor or from other settings.
        """
        rest = dict(state)
        try:
            dtype, num_refused = rest.pop("dtype"), rest.pop("num_refused")
        except KeyError as error:
            raise CheckpointError(f"this is no state of a predictor: {error} is missing") from error
        self._load(rest)
        self._dtype, self.num_refused = getattr(torch, dtype), int(num_refused)

    @abstractmethod
    def _state(self) -> dict[str, Any]:
        """Return what the subclass keeps."""

    @abstractmethod
    def _load(self, state: Mapping[str, Any]) -> None:
        """Take over what ``_state`` gave."""
