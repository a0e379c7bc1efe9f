"""The data of a run, scored on another part, or on fewer samples, than usual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from freewheel.config import Config, DataSection, parse_config
from freewheel.errors import DataError
from freewheel.runtime.context import scored_part
from freewheel.runtime.pieces import Pieces
from freewheel.streams.base import Source, SubsetSplit

#: Keys of ``[data]`` that say where samples come from; the others say how they are taken.
_SOURCE = ("name", "factory", "limit", "fallback")


def scored_sections(
    config: Config, part: Literal["test", "validation"] = "test", limit: int | None = None
) -> dict[str, Any]:
    """Return the ``[data]`` section that reads the same data as a run, scored otherwise.

    Args:
        config: the run's.
        part: what is scored.
        limit: score the first so many of its samples.
    """
    if part == "test" and limit is None:
        return {}
    plain = config.model_dump(mode="json", exclude_unset=True)
    data = plain.get("data", {})
    kept = {k: v for k, v in data.items() if k in DataSection.model_fields and k not in _SOURCE}
    settings: dict[str, Any] = {
        "factory": "freewheel.compare.data:scored",
        "config": {"data": data, "run": {"seed": config.run.seed}},
        "part": part,
    }
    if limit is not None:
        settings["score"] = limit
    return {"data": {**kept, **settings}}


def scored(config: Mapping[str, Any], part: str = "test", score: int | None = None) -> Source:
    """Load a run's data with its scored part in the place of the test part.

    Args:
        config: sections ``data`` and ``run`` of that run.
        part: ``"test"`` or ``"validation"``.
        score: keep the first so many samples of it.

    Raises:
        DataError: there is no validation part.

    Example:
        >>> from freewheel.compare.data import scored
        >>> source = scored({"data": {"name": "digits"}}, part="validation", score=50)
        >>> len(source.train), len(source.test)
        (1257, 50)
    """
    source = Pieces(parse_config(config)).source()
    split = source.validation if part == "validation" else scored_part(source)
    if part == "validation" and len(split) == 0:
        raise DataError(
            f"data set {source.name!r} has no validation part to tune on; give one in the data "
            "factory: (train, validation, test)"
        )
    if score is not None and score < len(split):
        split = SubsetSplit(split, torch.arange(score))
    return replace(source, test=split)
