"""How far the gradients of shards are apart at given weights. Loads torch when it is called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from freewheel.errors import DataError, ModelError
from freewheel.sharding.samples import ArrayFeatures, Features, Indices

if TYPE_CHECKING:
    from torch import Tensor, nn

    LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Dispersion:
    """Between-shard gradient dispersion.

    Args:
        per_worker: |grad L_w - grad L|^2 for each worker; NaN for an empty shard.
        gradient_norm: |grad L|, L the mean loss over the samples of all shards.
    """

    per_worker: NDArray[np.float64]
    gradient_norm: float

    @property
    def mean(self) -> float:
        """The dispersion: the mean over the workers that have samples."""
        return float(np.nanmean(self.per_worker))


def gradient_dispersion(
    model: nn.Module,
    loss: LossFunction,
    features: ArrayLike | Features,
    labels: ArrayLike,
    assignments: Sequence[Sequence[Indices]],
    *,
    batch_rows: int = 512,
) -> list[Dispersion]:
    """Return mean_w |grad L_w(x) - grad L(x)|^2 at the model's present weights x.

    L_w is the mean loss over shard w in evaluation mode, L that over all shards. Several
    assignments of the same samples, such as ours and a random one, are measured in one call.

    Args:
        model: anything with parameters that require gradients; not modified.
        loss: mean loss of a batch from outputs and targets, for example ``F.cross_entropy``.
        features: shape (N, ...) as the model takes them, or features read in batches.
        labels: shape (N, ...).
        assignments: for each of them, for each worker the indices of its samples.
        batch_rows: samples in a batch of features.

    Returns:
        One dispersion per assignment.

    Raises:
        DataError: no assignment, or one of no samples.
        ModelError: the model has no parameter that requires a gradient, or the loss is not finite.

    Example:
        >>> import numpy as np, torch
        >>> from freewheel.sharding.metrics import gradient_dispersion
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> mean = lambda outputs, targets: outputs.mean()  # its gradient is the mean input
        >>> x, y = np.array([[0.0], [2.0]], dtype=np.float32), np.zeros((2, 1), dtype=np.float32)
        >>> gradient_dispersion(model, mean, x, y, [[np.array([0]), np.array([1])]])[0].mean
        1.0
    """
    import torch

    source = features if hasattr(features, "batches") else ArrayFeatures(features)
    targets = np.asarray(labels)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    if not weights:
        raise ModelError("the model has no parameter that requires a gradient")
    if not assignments or any(not sum(map(len, shards)) for shards in assignments):
        raise DataError("gradient dispersion needs an assignment with at least one sample")
    width = sum(weight.numel() for weight in weights)
    sums = [torch.zeros(len(shards), width, dtype=torch.float64) for shards in assignments]
    was_training = model.training
    with suppress(NotImplementedError):  # an exported program has its mode built in
        model.eval()
    try:
        first = 0
        for batch in source.batches(batch_rows):
            rows = torch.from_numpy(np.array(batch))
            rows = rows if rows.is_floating_point() else rows.float()
            for total, shards in zip(sums, assignments, strict=True):
                for rank, shard in enumerate(shards):
                    low, high = np.searchsorted(shard, [first, first + len(batch)])
                    if low < high:
                        picked = shard[low:high]
                        part = rows[picked - first].to(weights[0].dtype)
                        answers = torch.from_numpy(targets[picked])
                        total[rank] += _gradient(model, loss, part, answers, weights)
            first += len(batch)
    finally:
        with suppress(NotImplementedError):
            model.train(was_training)
    return [
        _summarise(total.numpy(), shards) for total, shards in zip(sums, assignments, strict=True)
    ]


def _gradient(
    model: nn.Module, loss: LossFunction, rows: Tensor, targets: Tensor, weights: list[Any]
) -> Tensor:
    import torch

    value = loss(model(rows), targets) * len(rows)
    if not torch.isfinite(value):
        raise ModelError(f"the loss of a batch is {value.item()}; gradients need finite losses")
    grads = torch.autograd.grad(value, weights, allow_unused=True)
    flat = [
        (torch.zeros_like(weight) if grad is None else grad).reshape(-1)
        for grad, weight in zip(grads, weights, strict=True)
    ]
    return torch.cat(flat).double()


def _summarise(sums: NDArray[np.float64], shards: Sequence[Indices]) -> Dispersion:
    sizes = np.array([len(shard) for shard in shards], dtype=np.float64)
    overall = sums.sum(axis=0) / sizes.sum()
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = ((sums / sizes[:, None] - overall) ** 2).sum(axis=1)
    return Dispersion(apart, float(np.linalg.norm(overall)))
