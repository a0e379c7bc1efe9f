"""Figures of a results file: the number asked for, and the one reached, computed from the arms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.intervals import OF_ONE, OF_TWO


@dataclass(frozen=True)
class Figure:
    """A number that was asked for, and how it is computed from the arms.

    Args:
        asked: the number asked for; None for one that is only reported.
        rule: ``"at_most"`` or ``"at_least"``.
        statistic: a name of ``intervals.OF_ONE`` (no ``against``) or ``intervals.OF_TWO``.
        metric: a metric of both arms.
        arm: name of the arm; of several names, the one with the best median of ``metric``.
        against: name or names of the other arm, the denominator of a ratio.
        best: which median is best where several names are given.
    """

    asked: float | None
    rule: Literal["at_most", "at_least"]
    statistic: str
    metric: str
    arm: str | Sequence[str]
    against: str | Sequence[str] | None = None
    best: Literal["lowest", "highest"] = "lowest"


def compute(figure: Figure, arms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entry of a figure in a results file, computed from its arms alone.

    A figure whose arms lack a value for some seed does not hold: a crash is not an omission.

    Raises:
        KeyError: there is no such arm, metric or statistic.
    """
    by_name = {arm["name"]: arm for arm in arms}
    first = _best(figure.arm, by_name, figure)
    names = [first] if figure.against is None else [first, _best(figure.against, by_name, figure)]
    columns = [_values(by_name[name], figure.metric) for name in names]
    if any(by_name[name]["seeds"] != by_name[first]["seeds"] for name in names):
        raise ValueError(f"arms {names} have different seeds: they cannot be paired")
    paired = np.isfinite(np.stack(columns)).all(axis=0)
    reached, interval = math.nan, None
    if paired.any():
        statistic: Callable[..., Any] = (OF_ONE if figure.against is None else OF_TWO)[
            figure.statistic
        ]
        reached, interval = statistic(*(column[paired] for column in columns))
    holds: bool | None = None
    if figure.asked is not None:
        met = reached <= figure.asked if figure.rule == "at_most" else reached >= figure.asked
        holds = bool(met and paired.all())
    return {
        "asked": figure.asked,
        "rule": figure.rule,
        "reached": reached if math.isfinite(reached) else None,
        "interval": list(interval) if interval else None,
        "holds": holds,
        "of": {"arm": first, "against": names[1] if len(names) > 1 else None},
        "from": {key: value for key, value in asdict(figure).items() if key != "asked"},
    }


def recompute(entry: Mapping[str, Any], arms: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a figure's entry, computed again from what a results file says of it."""
    return compute(Figure(asked=entry["asked"], **entry["from"]), arms)


def _values(arm: Mapping[str, Any], metric: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    if len(arm["failures"]) == len(arm["seeds"]):  # it never got as far as naming its metrics
        return np.full(len(arm["seeds"]), np.nan)
    return np.array(
        [math.nan if value is None else value for value in arm["metrics"][metric]["values"]]
    )


def _best(names: str | Sequence[str], by_name: Mapping[str, Any], figure: Figure) -> str:
    if isinstance(names, str):
        return names
    sign = 1.0 if figure.best == "lowest" else -1.0

    def median(name: str) -> float:
        values = _values(by_name[name], figure.metric)
        finite = values[np.isfinite(values)]
        return sign * float(np.median(finite)) if len(finite) else math.inf

    return min(names, key=median)
