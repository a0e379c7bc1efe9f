"""Runs ``codecs``: ``make bench NAME=codecs``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.harness import Benchmark, Figure
from benchmarks.tasks import compared, from_command, measures, plan_of
from freewheel.compare.table import Table

FOUR, VANILLA = "4 bits", "vanilla"


def main(argv: Sequence[str] | None = None) -> int:
    """Compare on all tasks; the results file is written after each."""
    bench = from_command("codecs", argv)
    figures: dict[str, Figure] = {}
    for task in bench.settings["tasks"]:
        table = compared(bench, plan_of(task, tuple(bench.seeds)))
        bench.run(measures(table, task))
        figures |= dict(_figures(bench, task, table))
        bench.write(figures)
    return 0


def _figures(bench: Benchmark, task: str, table: Table) -> Iterator[tuple[str, Figure]]:
    metric, settings = table.section.metric, bench.settings
    vanilla = f"{task}: {VANILLA}"
    for row in table.rows:
        name = f"{task}: {row.arm.name}"
        if row.arm.kind == "floor" or row.arm.name == VANILLA:
            yield f"{metric}, {name}", Figure(None, "at_least", "mean", metric, name)
            continue
        asked = row.arm.name == FOUR and not bench.tiny
        if table.section.higher_is_better:
            least = -settings["asked_points"] if asked else None
            figure = Figure(least, "at_least", "mean_difference", metric, name, vanilla)
        else:
            most = settings["asked_relative"] if asked else None
            figure = Figure(most, "at_most", "ratio_of_means", metric, name, vanilla)
        yield f"{metric} against vanilla, {name}", figure
        if row.arm.kind == "arm":
            ratio = settings["asked_byte_ratio"] if asked else None
            yield (
                f"bytes of vanilla, {name}",
                Figure(ratio, "at_least", "ratio_of_means", "bytes", vanilla, name),
            )
            for link in table.links:
                wall = f"wall_s, {link}" if link else "wall_s"
                speed = Figure(None, "at_least", "ratio_of_means", wall, vanilla, name)
                yield f"speed-up{f' over {link}' if link else ''}, {name}", speed


if __name__ == "__main__":
    raise SystemExit(main())
