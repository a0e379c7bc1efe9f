"""The benchmark tasks: files for ``freewheel compare``, carried out for benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.harness import Benchmark, Measure, Metrics
from freewheel.compare.arms import Plan, read_plan
from freewheel.compare.runner import Part, Runner
from freewheel.compare.table import Table

FOLDER = Path(__file__).parent


def from_command(name: str, argv: Sequence[str] | None) -> Benchmark:
    """Read a benchmark whose units are looked up in comparisons: these remember what is done."""
    given = sys.argv[1:] if argv is None else argv
    return Benchmark.from_command(name, [*given, "--fresh"])


def plan_of(task: str, seeds: tuple[int, ...]) -> Plan:
    """Return the comparison of a task with the seeds of a benchmark."""
    return read_plan(FOLDER / f"{task}.toml", seeds)


def compared(bench: Benchmark, plan: Plan, part: Part = "test") -> Table:
    """Carry a comparison out, or take it up where it stopped; interrupted, it raises.

    Its runs are kept beside the benchmark's work file, in a folder of that name.
    """
    folder = bench.work.with_suffix("") / plan.name

    def say(line: str) -> None:
        print(f"{plan.name}: {line}", file=sys.stderr)

    outcome = Runner(plan, folder, part, say).run()
    if outcome.interrupted:
        raise KeyboardInterrupt
    return Table(outcome)


def measures(table: Table, prefix: str) -> dict[str, Measure]:
    """Return the arms of a comparison as arms of a benchmark: what was measured, by seed."""
    return {
        f"{prefix}: {row.arm.name}": _measure(table, index) for index, row in enumerate(table.rows)
    }


def _measure(table: Table, index: int) -> Measure:
    return partial(_look_up, table, index)


def _look_up(table: Table, index: int, seed: int) -> Metrics:
    arm = table.rows[index].arm
    unit = table.outcome.units.get((arm.name, seed))
    if unit is None:
        raise RuntimeError(f"not run: {arm.of!r} did not end well")
    if unit.status != "ok":
        raise RuntimeError(f"{unit.status}: {unit.error}")
    place = table.seeds.index(seed)
    return {key: values[place] for key, values in table.per_seed(arm).items()}
