"""A comparison of made-up runs, for tests of the table and the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from freewheel.compare.arms import Plan, read_plan
from freewheel.compare.controls import with_controls
from freewheel.compare.probe import Fastest
from freewheel.compare.runner import Outcome
from freewheel.compare.units import Unit

FILE = """
[run]
name = "made up"
[data]
name = "digits"
[model]
name = "mlp"
[train]
steps = 100
[compare]
seeds = 3
{compare}
[[arm]]
name = "4 bits"
codec.forward = "quantise:4"
codec.backward = "quantise:4"
"""
VANILLA, ARM, LESS = "vanilla", "4 bits", "train less (4 bits)"
LINEAR, FROZEN = "zero comm (linear head)", "frozen upstream"


def unit(arm: str, seed: int, metric: float | None, **measured: Any) -> Unit:
    values = {
        "metric": metric,
        "bytes": 8_000_000,
        "messages": 800,
        "steps": 100,
        "wall_s": 10.0,
        "free_s": 4.0,
        "updates": {"stage 0": 100, "stage 1": 100},
        "kinds": {"sync": 100},
        "curve": [],
        **measured,
    }
    return Unit(f"{arm}{seed}", arm, "train", seed, "ok", measured=values)


def curve(*scores: float, bytes_a_step: int, s_a_step: float) -> list[list[float]]:
    return [[25 * i, s, 25 * i * bytes_a_step, 25 * i * s_a_step] for i, s in enumerate(scores, 1)]


def plan_of(tmp_path: Path, compare: str = "") -> Plan:
    path = tmp_path / "c.toml"
    path.write_text(FILE.format(compare=compare))
    return read_plan(path)


def outcome_of(tmp_path: Path, compare: str = "") -> Outcome:
    plan = plan_of(tmp_path, compare)
    outcome = Outcome(plan, with_controls(plan))
    outcome.fastest[""] = Fastest({"schedule": "1f1b", "micro_batches": 4}, {})
    for seed, score in enumerate([0.90, 0.92, 0.94]):
        way = curve(0.5, 0.89, 0.91, score, bytes_a_step=80_000, s_a_step=0.1)
        short = curve(0.4, 0.92, 0.915, score - 0.01, bytes_a_step=10_000, s_a_step=0.05)
        arm = {"bytes": 1_000_000, "wall_s": 5.0, "free_s": 4.5, "curve": short}
        for made in (
            unit(VANILLA, seed, score, curve=way),
            unit(ARM, seed, score - 0.01, **arm),
            unit(LESS, seed, 0.7, bytes=1_000_000, steps=12, wall_s=1.2),
            unit(LINEAR, seed, 0.4, updates={"stage 0": 100}),
            unit(FROZEN, seed, 0.62, updates={"stage 0": 100}),
        ):
            outcome.units[made.arm, seed] = made
    return outcome
