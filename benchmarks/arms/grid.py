"""The grid of a comparison: in each place and for each model, every arm, then the fastest again."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from benchmarks.arms.places import Place, place
from benchmarks.harness import Benchmark, Measure, Metrics

#: Measures one run in a place.
Runner = Callable[[Place, int], Metrics]
OURS, THEIRS = "freewheel", "peer"


def compare(
    bench: Benchmark, group: str, sides: Mapping[str, Mapping[str, Runner]], **link: float
) -> dict[str, str]:
    """Try every arm of both sides on the trial seeds, then the fastest of each on all seeds.

    The fastest are measured anew, so that neither side's figure is the lucky one of many.

    Args:
        bench: the benchmark; ``trial_seeds`` and ``world_size`` are among its settings.
        group: begins the names of the arms, e.g. ``"mlp, loopback"``.
        sides: for each side its arms by name.
        link: of ``places.place``; empty for loopback.

    Returns:
        For each side the name of the arm that stands in the figures.
    """
    trial = {
        f"{group}, {side}, {name}": _arm(bench, runner, link)
        for side, arms in sides.items()
        for name, runner in arms.items()
    }
    if any(len(arms) > 1 for arms in sides.values()):
        bench.run(trial, seeds=bench.settings["trial_seeds"])
    medians = {
        arm["name"]: statistics.median(values)
        for arm in bench.arms()
        if (values := [v for v in arm["metrics"].get("step_ms", {}).get("values", []) if v])
    }
    finals: dict[str, Measure] = {}
    chosen = {}
    for side, arms in sides.items():
        names = [f"{group}, {side}, {name}" for name in arms]
        best = min(names, key=lambda name: medians.get(name, float("inf")))
        chosen[side] = best if len(arms) == 1 else f"{best}, the fastest"
        finals[chosen[side]] = trial[best]
    bench.run(finals)
    return chosen


def _arm(bench: Benchmark, runner: Runner, link: Mapping[str, float]) -> Measure:
    def measure(seed: int) -> Metrics:
        with place(bench.settings["world_size"], **link) as where:
            return runner(where, seed)

    return measure
