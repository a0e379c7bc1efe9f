"""From what a user writes as ``cuts`` to the layers of each stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from freewheel.errors import ConfigError, nearest


def check_stages(stages: int, num_layers: int) -> None:
    """Refuse a number of stages that cannot be had.

    Raises:
        ConfigError: fewer than one, or more than there are layers.
    """
    if stages < 1:
        raise ConfigError(f"stages must be >= 1, got {stages}; use stages = 1 for no cut")
    if stages > num_layers:
        raise ConfigError(
            f"{stages} stages but the model has {num_layers} layers that can be told apart; "
            f"each stage needs at least one: use stages <= {num_layers}, or give a model in "
            "smaller layers"
        )


def even(stages: int, num_layers: int, blocks: Sequence[int]) -> tuple[int, ...]:
    """Cut so that the numbers of top-level blocks differ by one at most, the larger first.

    Args:
        stages: how many.
        num_layers: number of layers.
        blocks: the ends (exclusive layer indices) of the model's top-level blocks; where there are
            fewer of them than stages, layers are counted instead.

    Returns:
        For each stage the index after its last layer.

    Example:
        >>> from freewheel.models.cuts import even
        >>> even(2, 7, range(1, 8)), even(2, 7, (4, 5, 7)), even(4, 7, (4, 5, 7))
        ((4, 7), (5, 7), (2, 4, 6, 7))
    """
    check_stages(stages, num_layers)
    if stages > len(blocks):
        blocks = range(1, num_layers + 1)
    share, larger = divmod(len(blocks), stages)
    ends = [share * (stage + 1) + min(stage + 1, larger) for stage in range(stages)]
    return tuple(blocks[end - 1] for end in ends)


def resolve(
    cuts: Sequence[str | int],
    stages: int,
    names: Sequence[str],
    known: Mapping[str, int],
    refused: Mapping[str, str],
) -> tuple[int, ...]:
    """Turn cuts, each the layer *after* which to cut, into the end of each stage.

    Args:
        cuts: names or indices of layers; for an ``nn.Sequential`` ``3`` and ``"3"`` are the same.
        stages: how many there shall be.
        names: names of the layers in order.
        known: every name that may stand for a cut, with the index of the layer that it means.
        refused: names of parts of the model after which it cannot be cut, with the reason.

    Returns:
        For each stage the index after its last layer.

    Raises:
        ConfigError: the number of cuts is not ``stages - 1``, one is unknown, they are not in the
            order of the model, or they leave a stage without layers.

    Example:
        >>> from freewheel.models.cuts import resolve
        >>> resolve(["b"], 2, ("a", "b", "c"), {"a": 0, "b": 1, "c": 2}, {})
        (2, 3)
    """
    check_stages(stages, len(names))
    if isinstance(cuts, str):
        raise ConfigError(
            f"cuts = {cuts!r} is neither a list nor one of 'even', 'balanced'; "
            f"write cuts = [{cuts!r}] to cut after that layer"
        )
    if len(cuts) != stages - 1:
        raise ConfigError(
            f"{stages} stages need {stages - 1} cuts (each names the layer after which to cut), "
            f"got {len(cuts)}: {list(cuts)!r}"
        )
    ends: list[int] = []
    for cut in cuts:
        index = _index(cut, names, known, refused)
        if index == len(names) - 1:
            raise ConfigError(
                f"the cut after {cut!r} leaves the last stage empty: it is the last layer; "
                f"cut after {names[-2]!r} or earlier"
            )
        if ends and index + 1 == ends[-1]:
            raise ConfigError(
                f"two cuts after {names[index]!r} leave an empty stage; name each cut once"
            )
        if ends and index + 1 < ends[-1]:
            raise ConfigError(
                f"the cut after {cut!r} comes before the one after {names[ends[-1] - 1]!r} in the "
                "model; list cuts in the order in which the layers run"
            )
        ends.append(index + 1)
    return (*ends, len(names))


def _index(
    cut: str | int, names: Sequence[str], known: Mapping[str, int], refused: Mapping[str, str]
) -> int:
    """Return the index of the layer that one cut means."""
    if isinstance(cut, bool) or not isinstance(cut, (str, int)):
        raise ConfigError(f"a cut is a layer's name or index, got {cut!r}")
    if isinstance(cut, int):
        if not 0 <= cut < len(names):
            raise ConfigError(f"cut {cut}: the layers are numbered 0 to {len(names) - 1}")
        return cut
    if cut in refused:
        raise ConfigError(
            f"the model cannot be cut after {cut!r}: {refused[cut]}; "
            f"cut after one of {', '.join(names[:-1])}"
        )
    if cut not in known:
        raise ConfigError(f"unknown cut point {cut!r}{nearest(cut, known)}")
    return known[cut]
