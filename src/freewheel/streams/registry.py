"""Data sets by name, ours and those of other packages (entry points ``freewheel.datasets``)."""

from __future__ import annotations

from typing import Any

from freewheel.registry import Registry
from freewheel.streams.base import Source
from freewheel.streams.finding import MissingDataError

#: Functions of settings that give a ``Source``; each takes at least ``limit`` and ``seed``.
datasets: Registry[Source] = Registry(kind="data set", group="freewheel.datasets")


def load(
    name: str,
    limit: int | None = None,
    fallback: str | None = None,
    seed: int = 0,
    **settings: Any,
) -> Source:
    """Load a data set by name.

    Args:
        name: one of ``datasets.names()``.
        limit: train on so many samples, chosen by ``seed``; None for all. Validation and test
            parts stay whole.
        fallback: the data set to load instead where the first one is not on this machine; the
            ``name`` of what comes back says which it was. ``settings`` are for the first only,
            and a ``limit`` above the size of the second means all of it. Data that is there but
            cannot be read is still an error.
        seed: for what is drawn at random: the samples under ``limit``, the pairs of ``pair_sum``.
            Which samples validate and test never depends on it.
        settings: more of the data set's own.

    Returns:
        The source, with train, validation and test parts.

    Raises:
        ConfigError: an unknown name or setting, or a limit below 1 or above what there is.
        DataError: the data is not on this machine (the message says where it was looked for and
            how to fetch it), is empty, or cannot be read.

    Example:
        >>> from freewheel.streams.registry import load
        >>> source = load("digits", limit=100)
        >>> source.name, len(source.train), len(source.validation), len(source.test)
        ('digits', 100, 180, 360)
    """
    if fallback is not None:
        datasets.get(fallback)  # a wrong name is an error also where it is not needed
    try:
        return datasets.create(name, {"limit": limit, "seed": seed, **settings})
    except MissingDataError:
        if fallback is None:
            raise
    whole = datasets.create(fallback, {"limit": None, "seed": seed})
    if limit is None or limit >= len(whole.train):
        return whole
    return datasets.create(fallback, {"limit": limit, "seed": seed})
