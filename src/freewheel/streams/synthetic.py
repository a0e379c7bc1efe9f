"""Made-up samples for tests: nothing to download, and the best possible model is known."""

from __future__ import annotations

import numpy as np
import torch

from freewheel.errors import ConfigError, nearest
from freewheel.streams.base import DataSpec, Source, TensorSplit
from freewheel.streams.parts import check_limit
from freewheel.streams.registry import datasets


@datasets.register("synthetic")
def synthetic(
    limit: int | None = None,
    seed: int = 0,
    task: str = "classification",
    num_samples: int = 512,
    num_features: int = 16,
    num_classes: int = 4,
    noise: float = 0.5,
) -> Source:
    """Made-up samples: ``num_samples`` to train on, a quarter as many to validate and to test.

    * ``classification``: each class is a Gaussian of standard deviation ``noise`` around a random
      centre of length ``sqrt(num_features)``; inputs float32 ``[batch, num_features]``, targets
      int64 ``[batch]``.
    * ``regression``: ``y = x w + noise e`` with ``x``, ``e`` standard normal and a random ``w`` of
      length 1, so that the least mean squared error is ``noise ** 2``; inputs float32
      ``[batch, num_features]``, targets float32 ``[batch, 1]``.
    * ``language``: each token is the one before plus 1 (mod ``num_classes``), or, with probability
      ``noise``, any token; inputs and targets int64 ``[batch, num_features]``.

    Args:
        limit: train on the first so many.
        seed: of the training samples; centres, weights, validation and test samples are fixed.
        task: which of the three.
        num_samples: to train on, at least 1.
        num_features: numbers in an input, or tokens in a block, at least 1.
        num_classes: classes or tokens, at least 2; not used by ``regression``.
        noise: at least 0; at most 1 for ``language``.

    Raises:
        ConfigError: a setting is out of its range.

    Example:
        >>> from freewheel.streams.synthetic import synthetic
        >>> synthetic(task="regression", num_features=3).spec.target_shape
        (1,)
    """
    if task not in _MAKERS:
        raise ConfigError(f"unknown task {task!r} of data set 'synthetic'{nearest(task, _MAKERS)}")
    for name, value, least in (
        ("num_samples", num_samples, 1),
        ("num_features", num_features, 1),
        ("num_classes", num_classes, 2),
        ("noise", noise, 0),
    ):
        if value < least:
            raise ConfigError(f"{name} of data set 'synthetic' must be >= {least}, got {value}")
    if limit is not None:
        check_limit(limit, num_samples)
    make, held_out = _MAKERS[task], max(num_samples // 4, 1)
    shape = (num_features, num_classes, noise)
    train = make(np.random.default_rng([1, seed]), num_samples, *shape, limit)
    return Source(
        name="synthetic",
        spec=_spec(task, num_features, num_classes),
        train=train,
        validation=make(np.random.default_rng(2), held_out, *shape, None),
        test=make(np.random.default_rng(3), held_out, *shape, None),
    )


def _spec(task: str, num_features: int, num_classes: int) -> DataSpec:
    if task == "classification":
        return DataSpec("synthetic", (num_features,), torch.float32, num_classes, "classification")
    if task == "regression":
        return DataSpec("synthetic", (num_features,), torch.float32, None, "regression", (1,))
    block = (num_features,)
    return DataSpec("synthetic", block, torch.int64, num_classes, "language", block)


def _classification(
    rng: np.random.Generator,
    num_samples: int,
    num_features: int,
    num_classes: int,
    noise: float,
    limit: int | None,
) -> TensorSplit:
    centres = np.random.default_rng(0).standard_normal((num_classes, num_features))
    centres *= np.sqrt(num_features) / np.linalg.norm(centres, axis=1, keepdims=True)
    labels = rng.integers(num_classes, size=num_samples)
    inputs = centres[labels] + noise * rng.standard_normal((num_samples, num_features))
    return TensorSplit(
        torch.from_numpy(inputs.astype(np.float32))[:limit], torch.from_numpy(labels)[:limit]
    )


def _regression(
    rng: np.random.Generator,
    num_samples: int,
    num_features: int,
    num_classes: int,
    noise: float,
    limit: int | None,
) -> TensorSplit:
    del num_classes
    weights = np.random.default_rng(0).standard_normal((num_features, 1))
    inputs = rng.standard_normal((num_samples, num_features))
    targets = inputs @ (weights / np.linalg.norm(weights))
    targets += noise * rng.standard_normal((num_samples, 1))
    return TensorSplit(
        torch.from_numpy(inputs.astype(np.float32))[:limit],
        torch.from_numpy(targets.astype(np.float32))[:limit],
    )


def _language(
    rng: np.random.Generator,
    num_samples: int,
    num_features: int,
    num_classes: int,
    noise: float,
    limit: int | None,
) -> TensorSplit:
    if noise > 1:
        raise ConfigError(f"noise is a probability for task 'language': at most 1, got {noise}")
    shape = (num_samples, num_features)
    tokens = np.empty((num_samples, num_features + 1), dtype=np.int64)
    tokens[:, 0] = rng.integers(num_classes, size=num_samples)
    jump, anywhere = rng.random(shape) < noise, rng.integers(num_classes, size=shape)
    for place in range(num_features):
        after = (tokens[:, place] + 1) % num_classes
        tokens[:, place + 1] = np.where(jump[:, place], anywhere[:, place], after)
    blocks = torch.from_numpy(tokens)[:limit]
    return TensorSplit(blocks[:, :-1].contiguous(), blocks[:, 1:].contiguous())


_MAKERS = {
    "classification": _classification,
    "regression": _regression,
    "language": _language,
}
