"""``python -m benchmarks.sharding``: dispersion, costs and spread, into one results file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks.harness import RESULTS, Benchmark, Figure
from benchmarks.sharding import page
from benchmarks.sharding.costs import mixture, timed
from benchmarks.sharding.data import all_digits, fashion
from benchmarks.sharding.gradients import dispersion, sketched
from benchmarks.sharding.shards import FOLDER, cached
from benchmarks.sharding.spread import METRICS, measured, tests
from benchmarks.sharding.weights import trained
from freewheel.sharding.metrics import gradient_dispersion, label_total_variation

Figures = dict[str, Figure]
Measure = Callable[[int], Mapping[str, float]]


def main(argv: Sequence[str] | None = None) -> int:
    torch.set_num_threads(1)
    bench = Benchmark.from_command("sharding", argv)
    figures: Figures = {}
    for task in bench.settings["tasks"]:
        figures |= compare_dispersion(bench, task)
        write(bench, figures)  # hours before the rest is done
    figures |= compare_costs(bench)
    write(bench, figures)
    figures |= compare_spread(bench)
    write(bench, figures)
    return 0


def write(bench: Benchmark, figures: Figures) -> None:
    """Write the results, and the tables of the documentation from them."""
    bench.write(figures)
    if bench.out == RESULTS / "sharding.json":
        page.main([])


def compare_dispersion(bench: Benchmark, task: str) -> Figures:
    """Dispersion of every sharder on one task, and the figures asked of ``balanced``."""
    settings = bench.settings
    others, skewed = settings["others"], settings["skewed"]
    names = ["random", *others, "balanced", *skewed]
    bench.run({f"{task}, {name}": _dispersions(settings, task, name) for name in names})
    figures: Figures = {}
    for epoch, asked in zip(settings["epochs"], settings["asked"], strict=True):
        metric = f"dispersion_{epoch}"
        ours = f"{task}, balanced"
        rivals = [f"{task}, {name}" for name in others]
        figures[f"{task}, epoch {epoch}: random to balanced"] = Figure(
            asked, "at_least", "ratio_of_means", metric, f"{task}, random", ours
        )
        figures[f"{task}, epoch {epoch}: best other sharder to balanced"] = Figure(
            1.0, "at_least", "ratio_of_means", metric, rivals, ours
        )
        for name in others:
            figures[f"{task}, epoch {epoch}: random to {name}"] = Figure(
                None, "at_least", "ratio_of_means", metric, f"{task}, random", f"{task}, {name}"
            )
        figures[f"{task}, epoch {epoch}: file sorted by label to balanced"] = Figure(
            8.0, "at_least", "ratio_of_means", metric, f"{task}, contiguous_on_sorted", ours
        )
    return figures


def _task_data(settings: Mapping[str, Any], task: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    if task.startswith("digits"):
        return all_digits()
    data = fashion()
    return data.inputs[: settings["limit"]], data.labels[: settings["limit"]]


def _dispersions(settings: Mapping[str, Any], task: str, name: str) -> Measure:
    def measure(seed: int) -> Mapping[str, float]:
        inputs, labels = _task_data(settings, task)
        data_name = f"{task.partition('_')[0]}-{len(labels)}"
        shards = cached(data_name, name, inputs, labels, settings["workers"], seed)
        models = trained(
            task,
            inputs,
            labels,
            settings["epochs"],
            seed=settings["weights_seed"],
            lr=settings["lr"],
            batch_size=settings["batch_size"],
        )
        found = {"label_tv": float(np.nanmean(label_total_variation(shards, labels)))}
        for epoch, model in models.items():
            if task.endswith("lenet"):
                file = (
                    FOLDER / f"gradients-{task}-{len(labels)}-{settings['directions']}-{epoch}.npy"
                )
                rows = sketched(model, inputs, labels, settings["directions"], file)
                found[f"dispersion_{epoch}"] = dispersion(rows, shards)
            if not task.endswith("lenet") or (
                seed == settings["check_seed"] and name in settings["check_arms"]
            ):
                exact = gradient_dispersion(
                    model, functional.cross_entropy, inputs, labels, [shards], batch_rows=6000
                )[0].mean
                key = "check_" if task.endswith("lenet") else "dispersion_"
                found[f"{key}{epoch}"] = exact
        return found

    return measure


def compare_costs(bench: Benchmark) -> Figures:
    """Seconds that sharding takes, and whether they grow with the samples alone."""
    settings, workers = bench.settings, bench.settings["workers"]
    whole, sizes = settings["limit"], settings["cost_rows"]
    fashion_task = "digits" if bench.tiny else "fashion"

    def images(_seed: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        return _task_data(settings, fashion_task)

    arms = {
        f"cost, {name}, {fashion_task}": timed(name, images, workers)
        for name in ("stratified", "class_cluster", "distribution_aware", "balanced")
    }
    arms |= {
        f"cost, balanced, {rows} x {settings['cost_features']}": timed(
            "balanced", mixture(rows, settings["cost_features"]), workers
        )
        for rows in sizes
    }
    bench.run(arms, seeds=settings["cost_seeds"])
    return {
        f"stratified, {whole} samples, s": Figure(
            0.5, "at_most", "median", "cpu_s", f"cost, stratified, {fashion_task}"
        ),
        f"balanced, {whole} x 784, s": Figure(
            60.0, "at_most", "median", "cpu_s", f"cost, balanced, {fashion_task}"
        ),
        f"balanced, time per sample, {sizes[-1]} to {sizes[-2]} samples": Figure(
            1.25,
            "at_most",
            "ratio_of_medians",
            "us_per_sample",
            f"cost, balanced, {sizes[-1]} x {settings['cost_features']}",
            f"cost, balanced, {sizes[-2]} x {settings['cost_features']}",
        ),
    }


def compare_spread(bench: Benchmark) -> Figures:
    """Spread of final metrics across asynchronous runs, in every regime."""
    settings = bench.settings
    seeds = list(range(settings["spread_runs"]))
    groups = [
        f"{data}, {regime}"
        for data, regimes in settings["spread_groups"].items()
        for regime in regimes
    ]
    figures: Figures = {}
    for group in groups:
        data, regime = group.split(", ")
        bench.run(
            {
                f"{group}, {name}": measured(name, data, regime, settings)
                for name in settings["spread_arms"]
            },
            seeds=seeds,
        )
        named = settings["primary"].startswith(f"{group}, ")
        for metric in METRICS:
            cell = f"{group}, {metric}"
            mark = "PRIMARY " if cell == settings["primary"] else ""
            claimed = 8.0 if metric.startswith("train") else 2.0
            figures[f"{mark}spread, {cell}: sd of random to balanced"] = Figure(
                claimed if named else None,
                "at_least",
                "ratio_of_sds",
                metric,
                f"{group}, random",
                f"{group}, balanced",
            )
            unequal = regime == "stragglers" and metric.startswith("val")
            figures[f"spread, {cell}: sd of file sorted by label to balanced"] = Figure(
                2.0 if unequal else None,
                "at_least",
                "ratio_of_sds",
                metric,
                f"{group}, contiguous_on_sorted",
                f"{group}, balanced",
            )
    tests(bench, groups, settings["spread_arms"], settings["primary"])
    return figures


if __name__ == "__main__":
    sys.exit(main())
