"""A user's model from a file: for its features, or to measure gradients with. Loads torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import ModelError
from freewheel.sharding.embedding import FeatureFunction

if TYPE_CHECKING:
    from torch import nn


def load_model(path: str | Path) -> nn.Module:
    """Load a model that ``torch.export.save`` (.pt2) or ``torch.jit.save`` (.pt, .ts) wrote.

    Export it with a dynamic batch dimension: batches are of several sizes.

    Raises:
        ModelError: the file is missing, of another kind, or cannot be loaded.
    """
    import torch

    file = Path(path)
    if not file.is_file():
        raise ModelError(f"there is no model file {file}")
    suffix = file.suffix.lower()
    if suffix not in (".pt2", ".pt", ".ts"):
        raise ModelError(
            f"{file}: a model must be .pt2 (torch.export.save) or .pt or .ts (torch.jit.save)"
        )
    try:
        model: nn.Module
        if suffix == ".pt2":
            model = torch.export.load(file).module()
        else:
            model = torch.jit.load(file, map_location="cpu")  # type: ignore[no-untyped-call]  # torch has no types there
    except (RuntimeError, ValueError, OSError, KeyError) as error:
        raise ModelError(f"{file} cannot be loaded as a model: {error}") from error
    return model


def model_features(model: nn.Module) -> FeatureFunction:
    """Return a function from a batch to the model's flattened outputs, for ``embedding=``.

    Args:
        model: takes float32 batches (B, *sample_shape); usually a network without its last layer.

    Raises:
        ModelError: by the function, when the model does not take the samples.

    Example:
        >>> import numpy as np, torch
        >>> from freewheel.sharding.model_file import model_features
        >>> features = model_features(torch.nn.Flatten())
        >>> features(np.ones((2, 3, 4))).shape
        (2, 12)
    """
    import torch

    def apply(batch: NDArray[Any]) -> NDArray[Any]:
        rows = torch.from_numpy(np.array(batch, dtype=np.float32))
        try:
            with torch.no_grad():
                outputs = model(rows)
        except (RuntimeError, TypeError, AssertionError) as error:
            raise ModelError(
                f"the model does not take a batch of shape {tuple(batch.shape)}: {error}; "
                "export it with a dynamic batch dimension and for samples of this shape"
            ) from error
        return np.asarray(outputs.reshape(len(rows), -1).numpy())

    return apply
