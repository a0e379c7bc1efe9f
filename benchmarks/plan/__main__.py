"""``python -m benchmarks.plan``: is what ``freewheel plan`` recommends the fastest in fact?"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Figure, Measure
from freewheel.config import Config, parse_config
from freewheel.launch.session import Origin, run
from freewheel.plan.measure import measure
from freewheel.plan.predict import CANDIDATES, predict, recommend

ROOT = Path(__file__).parents[2]
COLLECTIVE = ("all_reduce", "strategy_switch")


def main(argv: Sequence[str] | None = None) -> int:
    bench = Benchmark.from_command("plan", argv)
    figures: dict[str, Figure] = {}
    for setting in bench.settings["settings"]:
        names = _names(bench.settings, setting)
        arms = {f"{setting}, {name}": _timed(bench, setting, name) for name in names}
        bench.run({f"{setting}, plan": _chosen(bench, setting), **arms})
        figures[f"{setting}: time of the choice over that of the fastest"] = Figure(
            1.1, "at_most", "ratio_of_means", "wall_s", f"{setting}, plan", list(arms)
        )
        bench.write(figures)
    return 0


def _names(settings: Mapping[str, Any], setting: str) -> list[str]:
    slow = setting.startswith("slow link")
    return [name for name in settings["candidates"] if not (slow and name in COLLECTIVE)]


def _config(settings: Mapping[str, Any], setting: str, name: str, seed: int) -> Config:
    slow = setting.startswith("slow link")
    return parse_config(
        {
            "run": {"seed": seed},
            "data": {"name": "digits", "batch_size": settings["batch_size"]},
            "model": {
                "factory": "benchmarks.strategy_switch.paced:model",
                "seed": seed,
                "workers": settings["workers"],
                "pace_s": settings["pace_s"],
                "factor": settings["factor"] if setting.endswith("straggler") else 1.0,
            },
            "optimizer": {"name": "sgd", "lr": settings["lr"]},
            "train": {"steps": settings["steps"]},
            "layout": {
                "kind": "replicas" if name in COLLECTIVE else "server",
                "workers": settings["workers"],
            },
            "protocol": {"name": name, **CANDIDATES.get(name, {})},
            "link": settings["slow_link"] if slow else {},
        }
    )


def _run(config: Config) -> Mapping[str, float | int | None]:
    with tempfile.TemporaryDirectory(prefix="freewheel-plan-") as folder:
        section = config.run.model_copy(update={"dir": folder})
        placed = config.model_copy(update={"run": section})
        _, summary = run(placed, origin=Origin(path=(str(ROOT),)), quiet=True)
    return {"wall_s": summary["wall_s"], "samples": summary["samples"]}


def _timed(bench: Benchmark, setting: str, name: str) -> Measure:
    return lambda seed: _run(_config(bench.settings, setting, name, seed))


def _chosen(bench: Benchmark, setting: str) -> Measure:
    """Return what plans, and runs what was recommended."""

    def choose(seed: int) -> Mapping[str, float | int | None]:
        settings = bench.settings
        names = _names(settings, setting)
        config = _config(settings, setting, "asp", seed)
        found = measure(config, (str(ROOT),), settings["plan_seconds"], lambda _: None)
        predictions = predict(
            found, settings["workers"], 1, settings["steps"], settings["batch_size"], scales=()
        )
        fitting = [each for each in predictions if each.name in names]
        name = recommend(fitting).name
        predicted = next(each.time_s for each in fitting if each.name == name)
        place = list(CANDIDATES).index(name)
        measured = _run(_config(settings, setting, name, seed))
        return {**measured, "predicted_s": predicted, "choice": place}

    return choose


if __name__ == "__main__":
    sys.exit(main())
