"""Puts the tables of the results file into ``docs/sharding.md``.

``python -m benchmarks.sharding.page``; the benchmark does it too when it writes its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.harness import ROOT
from benchmarks.pages import write_page

PAGE = ROOT.parent / "docs" / "sharding.md"
METRICS = ("train_loss", "train_accuracy", "val_loss", "val_accuracy")
NAMES = {"contiguous_on_sorted": "file sorted by label, cut"}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, or with ``--check`` say by the exit code whether it is current."""
    return write_page("sharding", PAGE, render, argv)


def render(results: Mapping[str, Any]) -> str:
    """Return the tables of a results file."""
    arms = {arm["name"]: arm["metrics"] for arm in results["arms"]}
    parts = [_dispersion(results, arms), _costs(arms), _spread(results, arms)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _dispersion(results: Mapping[str, Any], arms: Mapping[str, Any]) -> str:
    settings, figures = results["settings"], results["headline"]
    names = [*settings["others"], "balanced"]
    rows = []
    for task in settings["tasks"]:
        if f"{task}, balanced" not in arms:
            continue
        for name in names:
            cells = []
            for epoch in settings["epochs"]:
                entry = figures[f"{task}, epoch {epoch}: random to {name}"]
                low, high = entry["interval"] or (np.nan, np.nan)
                cells.append(f"{entry['reached']:.2f} [{low:.2f}, {high:.2f}]")
            rows.append([task, name, *cells])
        sorted_arm = arms[f"{task}, contiguous_on_sorted"]
        random_arm = arms[f"{task}, random"]
        cells = [
            f"1 / {sorted_arm[key]['mean'] / random_arm[key]['mean']:.0f}"
            for key in (f"dispersion_{epoch}" for epoch in settings["epochs"])
        ]
        rows.append([task, NAMES["contiguous_on_sorted"], *cells])
    head = ["task", "sharder", *(f"epoch {epoch}" for epoch in settings["epochs"])]
    title = (
        "**Gradient dispersion: how many times lower than with random shards** "
        f"({settings['workers']} workers, {len(results['seeds'])} shardings, 95% intervals)"
    )
    return f"{title}\n\n{_table(head, rows)}"


def _costs(arms: Mapping[str, Any]) -> str:
    rows = [
        [name.removeprefix("cost, "), f"{metrics['cpu_s']['median']:.3g}",
         f"{metrics['us_per_sample']['median']:.3g}"]
        for name, metrics in arms.items()
        if name.startswith("cost, ")
    ]  # fmt: skip
    head = ["sharder, data", "processor time, s", "microseconds per sample"]
    return f"**Cost, one thread**\n\n{_table(head, rows)}" if rows else ""


def _spread(results: Mapping[str, Any], arms: Mapping[str, Any]) -> str:
    settings = results["settings"]
    rows = []
    for data, regimes in settings["spread_groups"].items():
        for regime in regimes:
            group = f"{data}, {regime}"
            if f"{group}, random" not in arms:
                continue
            for name in settings["spread_arms"]:
                if f"{group}, {name}" in arms:
                    rows.append([group, NAMES.get(name, name), *_cells(arms, group, name)])
    if not rows:
        return ""
    head = ["data, regime", "arm", *(name.replace("_", " ") for name in METRICS), "val accuracy"]
    title = (
        f"**Spread of {settings['spread_runs']} asynchronous runs: sd(random) / sd(arm)** (above "
        "1: less spread; * p < 0.05 by Brown-Forsythe after Holm's correction over all cells but "
        f"the primary one, which is `{settings['primary']}` of `balanced`, marked + if p < 0.05; "
        "last column: mean)"
    )
    return f"{title}\n\n{_table(head, rows)}"


def _cells(arms: Mapping[str, Any], group: str, name: str) -> list[str]:
    base, mine = arms[f"{group}, random"], arms[f"{group}, {name}"]
    tests = arms.get(f"spread, {group}, {name}, Brown-Forsythe", {})
    cells = []
    for metric in METRICS:
        spreads = [np.std(one[metric]["values"], ddof=1) for one in (base, mine)]
        text = f"{spreads[0] / spreads[1]:.2f}" if spreads[1] > 0 else "all alike"
        adjusted = tests.get(f"holm_p_{metric}", tests.get(f"p_{metric}"))
        if name != "random" and adjusted is not None and adjusted["mean"] < 0.05:
            text += " *" if f"holm_p_{metric}" in tests else " +"
        cells.append(text)
    return [*cells, f"{mine['val_accuracy']['mean']:.4f}"]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


if __name__ == "__main__":
    raise SystemExit(main())
