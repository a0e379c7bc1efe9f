"""Runs ``pipeline_vanilla``: ``make bench NAME=pipeline_vanilla``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.arms import ours, theirs
from benchmarks.arms.grid import OURS, THEIRS, Runner, compare
from benchmarks.arms.places import RUN_FILE, Place
from benchmarks.harness import Benchmark, Figure, Metrics


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all places and models and write the results."""
    bench = Benchmark.from_command("pipeline_vanilla", argv)
    settings = bench.settings
    figures = {}
    for rate_mbit in settings["rates_mbit"]:
        where = f"{rate_mbit} Mbit/s" if rate_mbit else "loopback"
        for model in settings["models"]:
            link = {"rate_mbit": rate_mbit} if rate_mbit else {}
            sides = {side: _arms(bench, model, run) for side, run in RUNNERS.items()}
            chosen = compare(bench, f"{model}, {where}", sides, **link)
            for metric, what in (("step_ms", "time per step"), ("peak_rss_mb", "memory")):
                figures[f"{what}, {model}, {where}"] = Figure(
                    asked=1.0,
                    rule="at_most",
                    statistic="ratio_of_medians",
                    metric=metric,
                    arm=chosen[OURS],
                    against=chosen[THEIRS],
                )
    bench.write(figures)
    return 0


def _arms(bench: Benchmark, model: str, run: Callable[..., Metrics]) -> dict[str, Runner]:
    """Return every schedule with every number of micro-batches that both sides can have."""
    settings = bench.settings
    return {
        f"{schedule} x {count}": partial(run, bench, model, schedule, count)
        for schedule in settings["schedules"]
        for count in settings["micro_batches"]
        if schedule == "gpipe" or count >= settings["world_size"]
    }


def _ours(
    bench: Benchmark, model: str, schedule: str, count: int, where: Place, seed: int
) -> Metrics:
    settings = bench.settings
    overrides = [
        f"model.name={model}",
        f"run.seed={seed}",
        f"data.batch_size={settings['batch_size']}",
        f"train.steps={settings['warmup'] + settings['steps']}",
        f"layout.stages={settings['world_size']}",
        f"layout.schedule={schedule}",
        f"layout.micro_batches={count}",
    ]
    return ours.train(where, RUN_FILE, overrides, warmup=settings["warmup"])


def _theirs(
    bench: Benchmark, model: str, schedule: str, count: int, where: Place, seed: int
) -> Metrics:
    settings = bench.settings
    arguments = [
        *("--model", model, "--schedule", schedule, "--micro-batches", str(count)),
        *("--seed", str(seed), "--batch-size", str(settings["batch_size"])),
        *("--warmup", str(settings["warmup"]), "--steps", str(settings["steps"])),
    ]
    return theirs.run(where, "pipelining", arguments, world_size=settings["world_size"])


RUNNERS = {OURS: _ours, THEIRS: _theirs}

if __name__ == "__main__":
    raise SystemExit(main())
