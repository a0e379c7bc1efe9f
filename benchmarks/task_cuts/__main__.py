"""Runs ``task_cuts``: ``make bench NAME=task_cuts``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.harness import Figure
from benchmarks.tasks import compared, from_command, measures, plan_of
from freewheel.compare.arms import merge


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the floors of all cuts and write the results."""
    bench = from_command("task_cuts", argv)
    figures: dict[str, Figure] = {}
    for task, cuts in bench.settings["cuts"].items():
        for cut in cuts:
            plan = plan_of(task, tuple(bench.seeds))
            section = plan.section.model_copy(
                update={"probe_steps": 0, "links": (), "controls": ("zero_comm", "frozen_upstream")}
            )
            base = merge(plan.base, {"layout": {"cuts": [cut]}, "run": {"name": f"{task}-{cut}"}})
            plan = replace(plan, name=f"{task}-{cut}", base=base, section=section, arms=())
            table = compared(bench, plan, "validation")
            bench.run(measures(table, f"{task}, {cut}"))
            figures |= {
                f"{section.metric}, {task}, cut after {cut}: {row.arm.name}": Figure(
                    None, "at_most", "mean", section.metric, f"{task}, {cut}: {row.arm.name}"
                )
                for row in table.rows
            }
    bench.write(figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
