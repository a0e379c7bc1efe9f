"""Spread across runs: regimes, arms with their controls, and tests over all cells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.harness import Benchmark
from benchmarks.sharding.data import Data, digits, fashion, pooled
from benchmarks.sharding.shards import FOLDER, Shards, cached
from benchmarks.sharding.virtual import Regime, Seeds, train
from freewheel.sharding.metrics import brown_forsythe, epoch_spread, holm, worst_recall

METRICS = ("train_loss", "train_accuracy", "val_loss", "val_accuracy")
#: Fashion-MNIST merged into four: upper clothes, trousers, shoes, bags; the ten are hidden strata.
COARSE = np.array([0, 1, 0, 0, 0, 2, 0, 2, 3, 2])
REGIMES = {
    "base": Regime(),
    "long_tail": Regime(),
    "coarse": Regime(),
    "stragglers": Regime(workers=8, slow=2, factor=4.0),
    "local_4": Regime(local_steps=4, lr=0.05),
}
#: Arms whose shards are the same in all runs; ``null`` repeats start and times as well.
FROZEN = {"random_frozen": "random", "stratified_frozen": "stratified", "null": "random"}


@dataclass(frozen=True)
class Setting:
    """Data and regime of a group of arms; ``strata`` are the finer labels of validation samples."""

    data: Data
    regime: Regime
    strata: NDArray[np.int64]


def setting(data_name: str, regime_name: str, limit: int) -> Setting:
    """Return data and regime by name; ``limit`` training samples at most."""
    whole = digits() if data_name == "digits" else fashion()
    if data_name != "digits":
        whole = Data(pooled(whole.inputs), whole.labels, pooled(whole.val_inputs), whole.val_labels)
    order = np.random.default_rng(0).permutation(len(whole.labels))[:limit]
    labels, strata = whole.labels[order], whole.val_labels
    if regime_name == "long_tail":
        rank = np.argsort(np.argsort(labels, kind="stable"), kind="stable")
        rank -= np.searchsorted(np.sort(labels), labels)  # place of a sample within its class
        keep = rank < np.round(np.bincount(labels).min() * 0.01 ** (labels / 9)).clip(2)
        order, labels = order[keep], labels[keep]
    val_labels = whole.val_labels
    if regime_name == "coarse":
        labels, val_labels = COARSE[labels], COARSE[val_labels]
    data = Data(
        whole.inputs[order].reshape(len(order), -1),
        labels,
        whole.val_inputs.reshape(len(val_labels), -1),
        val_labels,
    )
    return Setting(data, REGIMES[regime_name], strata)


def arm_shards(name: str, where: Setting, seed: int) -> Shards:
    """Return the shards of one run of an arm; regimes with the same samples share them."""
    strategy = FROZEN.get(name, name)
    if name == "stratified_frozen":  # as published: file order, so all runs share their shards
        strategy = "stratified:shuffle=false"
    samples = where.data.inputs.tobytes() + where.data.labels.tobytes()
    task = f"spread-{hashlib.sha256(samples).hexdigest()[:12]}"
    return cached(
        task,
        strategy,
        where.data.inputs,
        where.data.labels,
        where.regime.workers,
        0 if name in FROZEN else seed,
    )


def measured(
    name: str, data_name: str, regime_name: str, settings: Mapping[str, Any]
) -> Callable[[int], dict[str, float]]:
    """Return the measure of an arm; all of its runs are made by the first call, then looked up."""

    def measure(seed: int) -> dict[str, float]:
        table = _all_runs(name, data_name, regime_name, settings)
        return {key: values[seed] for key, values in table.items()}

    return measure


def _all_runs(
    name: str, data_name: str, regime_name: str, settings: Mapping[str, Any]
) -> dict[str, list[float]]:
    where = setting(data_name, regime_name, settings["spread_limit"])
    runs, epochs = settings["spread_runs"], settings["spread_epochs"][data_name]
    key = json.dumps(
        [name, data_name, regime_name, runs, epochs, settings["spread_limit"], asdict(where.regime)]
    )
    file = FOLDER / f"spread-{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"
    if file.exists():
        table: dict[str, list[float]] = json.loads(file.read_text())
        return table
    FOLDER.mkdir(parents=True, exist_ok=True)
    seeds = [Seeds(seed, seed, seed) for seed in range(runs)]
    if name == "null":
        seeds = [replace(one, start=0, times=0) for one in seeds]
    if name in FROZEN:
        shards = [arm_shards(name, where, 0)] * runs
    else:
        shards = [arm_shards(name, where, seed) for seed in range(runs)]
    data = where.data
    outcome = train(
        data.inputs,
        data.labels,
        data.val_inputs,
        data.val_labels,
        shards,
        seeds,
        where.regime,
        epochs,
    )
    table = {key: values.tolist() for key, values in outcome.final.items()}
    table["epoch_sd"] = epoch_spread(outcome.curves).tolist()
    table["worst_class_recall"] = [
        worst_recall(row, data.val_labels).value for row in outcome.predictions
    ]
    table["worst_stratum_recall"] = [
        worst_recall(row, data.val_labels, where.strata).value for row in outcome.predictions
    ]
    aside = file.with_suffix(".part")
    aside.write_text(json.dumps(table))
    aside.replace(file)
    return table


def tests(bench: Benchmark, groups: Sequence[str], arms: Sequence[str], primary: str) -> None:
    """Add arms with the Brown-Forsythe p-values of every cell against random shards.

    A cell is a group, a metric and an arm. The primary cell stands alone; Holm's method adjusts all
    the others together.
    """
    by_name = {arm["name"]: arm["metrics"] for arm in bench.arms()}
    raw: dict[tuple[str, str], dict[str, float]] = {}
    for group in groups:
        base = by_name[f"{group}, random"]
        for name in arms:
            if name == "random":
                continue
            cell = by_name[f"{group}, {name}"]
            raw[group, name] = {
                metric: brown_forsythe(base[metric]["values"], cell[metric]["values"])[1]
                for metric in METRICS
            }
    flat = [
        (key, metric)
        for key, cells in raw.items()
        for metric in cells
        if f"{key[0]}, {metric}" != primary or key[1] != "balanced"
    ]
    adjusted = dict(zip(flat, holm([raw[key][metric] for key, metric in flat]), strict=True))

    def report(key: tuple[str, str]) -> Callable[[int], dict[str, float]]:
        def measure(_seed: int) -> dict[str, float]:
            found = {f"p_{metric}": value for metric, value in raw[key].items()}
            found |= {
                f"holm_p_{metric}": float(adjusted[key, metric])
                for metric in METRICS
                if (key, metric) in adjusted
            }
            return found

        return measure

    bench.run(
        {f"spread, {group}, {name}, Brown-Forsythe": report((group, name)) for group, name in raw},
        seeds=[0],
    )
