"""Choices on validation data, each a row of the table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TypeVar

from benchmarks.harness import Benchmark, Measure

Key = TypeVar("Key", bound=str | float)


def best(
    bench: Benchmark, tries: Mapping[Key, tuple[str, Measure]], seeds: Sequence[int] | None = None
) -> Key:
    """Measure all tries on the trial seeds; return the key of the one with the highest accuracy.

    Args:
        bench: ``trial_seeds`` are among its settings.
        tries: by key, the name of an arm and what measures it. One that is alone is not measured.
        seeds: in place of the trial seeds.
    """
    if len(tries) == 1:
        return next(iter(tries))
    bench.run(dict(tries.values()), seeds or bench.settings["trial_seeds"])
    means = {arm["name"]: _mean(arm["metrics"]) for arm in bench.arms()}
    return max(tries, key=lambda key: means[tries[key][0]])


def _mean(metrics: Mapping[str, Mapping[str, list[float | None]]]) -> float:
    found = [v for v in metrics.get("accuracy", {}).get("values", []) if v is not None]
    return statistics.fmean(found) if found else float("-inf")
