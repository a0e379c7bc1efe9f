"""One predictor for each tensor of a flat parameter vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from freewheel.errors import CheckpointError
from freewheel.predictors.base import Predictor, check_state, take


def per_tensor(state: Tensor, sizes: Sequence[int]) -> tuple[Tensor, ...]:
    """Cut a flat vector into views of the given sizes.

    Args:
        state: flat, [P].
        sizes: numbers of values, >= 0, that sum to P.

    Returns:
        Views [size] of ``state``, in order.

    Raises:
        ValueError: the sizes do not sum to P.

    Example:
        >>> import torch
        >>> from freewheel.predictors import per_tensor
        >>> [part.tolist() for part in per_tensor(torch.arange(3.0), [1, 2])]
        [[0.0], [1.0, 2.0]]
    """
    if sum(sizes) != state.numel() or any(size < 0 for size in sizes):
        raise ValueError(
            f"sizes must be >= 0 and sum to the {state.numel()} values of the state, got "
            f"{list(sizes)}, which sum to {sum(sizes)}"
        )
    return torch.split(state, list(sizes))


class PerTensor:
    """A predictor made of one predictor per tensor, each of its own kind.

    Args:
        sizes: values of each tensor, in the order in which they lie in the flat vector.
        parts: one predictor for each.

    Raises:
        ValueError: there are not as many parts as sizes, or there are none.

    Example:
        >>> import torch
        >>> from freewheel.predictors import PerTensor, predictors
        >>> mixed = PerTensor([1, 2], [predictors.create("static"), predictors.create("velocity")])
        >>> for clock in range(2):
        ...     mixed.observe(clock, torch.full((3,), float(clock)))
        >>> mixed.predict(1)
        tensor([1., 2., 2.])
    """

    def __init__(self, sizes: Sequence[int], parts: Sequence[Predictor]) -> None:
        if len(sizes) != len(parts) or not parts:
            raise ValueError(
                f"one predictor per tensor is needed, got {len(parts)} for {len(sizes)} tensors"
            )
        self.sizes, self.parts = tuple(sizes), tuple(parts)

    @property
    def copies(self) -> float:
        """Mean of the parts' copies, weighted by their sizes."""
        total = sum(self.sizes)
        held = sum(size * part.copies for size, part in zip(self.sizes, self.parts, strict=True))
        return held / total if total else 0.0

    @property
    def ready(self) -> bool:
        """Whether every part is ready."""
        return all(part.ready for part in self.parts)

    @property
    def num_refused(self) -> int:
        """Predictions of parts that were not finite."""
        return sum(part.num_refused for part in self.parts)

    @num_refused.setter
    def num_refused(self, value: int) -> None:
        for part in self.parts:
            part.num_refused = value

    def observe(self, clock: int, state: Tensor) -> None:
        """Give each part its piece of ``state`` [P]; all of them or, if one is refused, none.

        Raises:
            ValueError: as ``BasePredictor.observe``, or the sizes do not sum to P.
            NonFiniteError: a value is NaN or infinite.
        """
        check_state(clock, state, None, None)  # before any part has taken note of its piece
        for part, piece in zip(self.parts, per_tensor(state, self.sizes), strict=True):
            part.observe(clock, piece)

    def predict(self, horizon: int) -> Tensor:
        """Return the parts' predictions, joined: [P]."""
        return torch.cat([part.predict(horizon) for part in self.parts])

    def reset(self) -> None:
        """Let every part forget."""
        for part in self.parts:
            part.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the parts, under ``"0"``, ``"1"`` ..."""
        return {str(index): part.state_dict() for index, part in enumerate(self.parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave.

        Raises:
            CheckpointError: it has another number of parts, or a part does not fit.
        """
        loaded = take(state, *(str(index) for index in range(len(self.parts))))
        for part, its_state in zip(self.parts, loaded, strict=True):
            if not isinstance(its_state, Mapping):
                raise CheckpointError(f"the state of a part must be a dict, got {type(its_state)}")
            part.load_state_dict(its_state)
