"""How much each update weighs, by the number of samples behind it."""

from __future__ import annotations

from collections.abc import Sequence


def sample_weights(num_samples: Sequence[int]) -> tuple[float, ...]:
    """Return the share of each update in a mean over samples.

    ``w_i = n_i / sum_j n_j``, so that a mean of per-batch means is the mean over all samples. An
    update without samples weighs nothing; when none has any, all weigh nothing.

    Args:
        num_samples: samples behind each update, >= 0.

    Returns:
        As many weights, summing to 1 (or all 0).

    Raises:
        ValueError: a count is negative.

    Example:
        >>> from freewheel.aggregation import sample_weights
        >>> sample_weights([4, 1, 0])
        (0.8, 0.2, 0.0)
        >>> sample_weights([0, 0])
        (0.0, 0.0)
    """
    for count in num_samples:
        if count < 0:
            raise ValueError(f"number of samples must be >= 0, got {count}")
    total = sum(num_samples)
    return tuple(count / total if total else 0.0 for count in num_samples)
