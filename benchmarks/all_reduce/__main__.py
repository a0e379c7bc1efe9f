"""Runs ``all_reduce``: ``make bench NAME=all_reduce``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.arms import ours, theirs
from benchmarks.arms.grid import OURS, THEIRS, compare
from benchmarks.arms.places import RUN_FILE, Place
from benchmarks.harness import Benchmark, Figure, Metrics


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all places and models and write the results."""
    bench = Benchmark.from_command("all_reduce", argv)
    figures = {}
    for rate_mbit in bench.settings["rates_mbit"]:
        where = f"{rate_mbit} Mbit/s" if rate_mbit else "loopback"
        for model in bench.settings["models"]:
            link = {"rate_mbit": rate_mbit} if rate_mbit else {}
            sides = {
                OURS: {"all_reduce": partial(_ours, bench, model)},
                THEIRS: {"DDP": partial(_theirs, bench, model)},
            }
            chosen = compare(bench, f"{model}, {where}", sides, **link)
            figures[f"time per step, {model}, {where}"] = Figure(
                asked=1.05,
                rule="at_most",
                statistic="ratio_of_medians",
                metric="step_ms",
                arm=chosen[OURS],
                against=chosen[THEIRS],
            )
    bench.write(figures)
    return 0


def _ours(bench: Benchmark, model: str, where: Place, seed: int) -> Metrics:
    settings = bench.settings
    overrides = [
        f"model.name={model}",
        f"run.seed={seed}",
        f"data.batch_size={settings['batch_size']}",
        f"train.steps={settings['warmup'] + settings['steps']}",
        "layout.kind=replicas",
        f"layout.workers={settings['world_size']}",
    ]
    return ours.train(where, RUN_FILE, overrides, warmup=settings["warmup"])


def _theirs(bench: Benchmark, model: str, where: Place, seed: int) -> Metrics:
    settings = bench.settings
    arguments = [
        *("--model", model, "--seed", str(seed), "--batch-size", str(settings["batch_size"])),
        *("--warmup", str(settings["warmup"]), "--steps", str(settings["steps"])),
    ]
    return theirs.run(where, "ddp", arguments, world_size=settings["world_size"])


if __name__ == "__main__":
    raise SystemExit(main())
