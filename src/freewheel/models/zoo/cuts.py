"""Where the models of the zoo are cut when the user names no cuts."""

from __future__ import annotations

from collections.abc import Sequence


def equal_cuts(ends: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Split like blocks as evenly as possible, with later stages the larger.

    Args:
        ends: the last layer of each block.

    Returns:
        The cuts for each number of stages up to the number of blocks.

    Example:
        >>> from freewheel.models.zoo.cuts import equal_cuts
        >>> equal_cuts(["act1", "act2", "head"])
        {1: (), 2: ('act1',), 3: ('act1', 'act2')}
    """
    count = len(ends)
    return {
        stages: tuple(ends[count * stage // stages - 1] for stage in range(1, stages))
        for stages in range(1, count + 1)
    }


def preferred_cuts(names: Sequence[str], preferred: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Use the best cut points first.

    Args:
        names: the model's layers in order.
        preferred: cut points, the best first.

    Returns:
        The cuts for each number of stages up to one more than there are cut points.

    Example:
        >>> from freewheel.models.zoo.cuts import preferred_cuts
        >>> preferred_cuts(["conv", "pool", "fc", "head"], ["pool", "conv"])
        {1: (), 2: ('pool',), 3: ('conv', 'pool')}
    """
    return {
        count + 1: tuple(sorted(preferred[:count], key=list(names).index))
        for count in range(len(preferred) + 1)
    }
