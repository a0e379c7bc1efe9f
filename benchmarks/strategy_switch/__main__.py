"""``python -m benchmarks.strategy_switch``: when to leave all-reduce, and what for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.harness import WORK, Benchmark, Figure
from benchmarks.strategy_switch import paced
from benchmarks.strategy_switch.runs import Outcome, train
from freewheel.monitors import criteria

REFERENCE = "all-reduce"
#: All-reduce to the end, with all that the published rule looks at measured on the way.
WATCHED = {
    "name": "strategy_switch",
    "criterion": {
        "name": "all_of",
        "members": [
            {"name": "maximum", "clock": 10**9},
            {"name": "relative_change", "loss": "validation_loss", "per": "epoch"},
        ],
    },
}
Measure = Callable[[int], Mapping[str, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    torch.set_num_threads(1)
    bench = Benchmark.from_command("strategy_switch", argv)
    settings = bench.settings
    figures: dict[str, Figure] = {}
    for task in settings["tasks"]:
        bench.run({f"{task}, {name}": arm(bench, task, name) for name in settings["protocols"]})
        figures |= asked(task)
        bench.write(figures)  # long before the other arms are done
    seeds = settings["other_seeds"]
    names = (REFERENCE, "async, folded", "ours")
    bench.run({f"paced, {name}": real(bench, name) for name in names}, seeds=seeds)
    for name in names[1:]:
        figures[f"paced, {name}: times faster than all-reduce, same samples, wall"] = Figure(
            2.0 if name == "ours" else None,
            "at_least",
            "ratio_of_means",
            "wall_s",
            f"paced, {REFERENCE}",
            f"paced, {name}",
        )
    bench.write(figures)
    for task in settings["tasks"]:
        for name in (*settings["others"], *rules(settings)):
            bench.run({f"{task}, {name}": arm(bench, task, name)}, seeds=seeds)
        for name in (REFERENCE, "async, folded", "ours"):
            measure = arm(bench, task, name, equal=True)
            bench.run({f"{task}, equal workers, {name}": measure}, seeds=seeds)
        bench.write(figures)
    return 0


def real(bench: Benchmark, name: str) -> Measure:
    """Return what measures one arm between real processes."""
    return lambda seed: paced.measure(bench.settings["protocols"][name], bench.settings, seed)


def rules(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the published rule over each loss at each threshold, but for the primary one."""
    found = {}
    for loss, how in settings["rules"]["losses"].items():
        for threshold in settings["rules"]["thresholds"]:
            if (loss, threshold) != ("train", 0.01):
                rule = {"name": "relative_change", "window": 6, "per": "epoch", **how}
                found[f"published, {loss} {threshold:g}"] = {
                    "name": "strategy_switch",
                    "criterion": {**rule, "threshold": threshold},
                    "at_switch": ["fold_momentum"],
                }
    return found


def arm(bench: Benchmark, task: str, name: str, equal: bool = False) -> Measure:
    """Return what measures one arm of a task; ``equal``: no worker is slow."""
    settings = bench.settings
    known = {**settings["protocols"], **settings["others"], **rules(settings)}
    slow = 0 if equal else settings["slow"]

    def measure(seed: int) -> Mapping[str, Any]:
        reference = _reference(bench, task, seed, slow)
        published = name.startswith("published")
        same = name == REFERENCE or (published and not fires(known[name], reference))
        found = reference if same else train(task, known[name], settings, seed, slow)
        goal = 0.99 * reference.curve[-1][1]
        reached = next((at for at, accuracy in found.curve if accuracy >= goal), None)
        return {
            "accuracy": found.accuracy,
            "virtual_s": found.virtual_s,
            "time_to_99": reached,
            "switched_at": found.switched_at,
            "steps": found.steps,
            "updates": found.updates,
            "samples": found.samples,
            "wait_share": found.wait_share,
            "staleness": found.staleness_mean,
        }

    return measure


def fires(protocol: Mapping[str, Any], reference: Outcome) -> bool:
    """Return whether a rule would have fired in an all-reduce run; up to then they are the same."""
    rule = dict(protocol["criterion"])
    criterion = criteria.create(rule.pop("name"), rule)
    seen = enumerate(reference.seen, start=1)
    return any(criterion.observe(step, facts).verdict == "switch" for step, facts in seen)


def _reference(bench: Benchmark, task: str, seed: int, slow: int) -> Outcome:
    """Return the all-reduce run of a seed, computed once for all arms."""
    file = WORK / "strategy_switch" / f"{bench.fingerprint}-{task}-{slow}-{seed}.json"
    if not file.exists():
        found = train(task, WATCHED, bench.settings, seed, slow, keep_seen=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        aside = file.with_suffix(".part")
        aside.write_text(json.dumps(vars(found)))
        aside.replace(file)
    return Outcome(**json.loads(file.read_text()))


def asked(task: str) -> dict[str, Figure]:
    """Return what is asked of a task, and the same of the other primary arms, reported."""
    figures = {}
    for name in ("ours", "async, folded", "published", "fixed 25%"):
        ours = name == "ours"
        this, base = f"{task}, {name}", f"{task}, {REFERENCE}"
        figures[f"{this}: points below all-reduce, one-sided 95% bound"] = Figure(
            0.3 if ours else None, "at_most", "upper_bound_of_difference", "accuracy", base, this
        )
        figures[f"{this}: times faster than all-reduce, same samples"] = Figure(
            2.0 if ours else None, "at_least", "ratio_of_means", "virtual_s", base, this
        )
        figures[f"{this}: times faster to 99% of all-reduce's accuracy"] = Figure(
            1.5 if ours else None, "at_least", "ratio_of_means", "time_to_99", base, this
        )
    return figures


if __name__ == "__main__":
    sys.exit(main())
