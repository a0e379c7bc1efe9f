"""The table as text: headings, cells and notes, for the terminal, Markdown and the page alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from freewheel.compare.controls import VANILLA, left_out
from freewheel.compare.statistics import Estimate
from freewheel.compare.table import Cost, Row, Table

NOTHING = "-"


@dataclass(frozen=True)
class Column:
    """One column of the table.

    Args:
        head: its heading.
        cells: one a row.
        about: what it is, in a sentence.
        group: columns that stay side by side where there is no room for all.
        over: the link that it is about.
    """

    head: str
    cells: Sequence[str]
    about: str = ""
    group: str = "learnt"
    over: str = ""

    @property
    def full_head(self) -> str:
        """The heading where other links' columns stand beside it."""
        return f"{self.head}, {self.over}" if self.over else self.head


def columns(table: Table) -> list[Column]:
    """Return the columns of the table; the first two are arm and number of seeds."""
    rows, unit = table.rows, Unit(table)
    found = [
        Column("arm", [row.arm.name for row in rows]),
        Column("seeds", [_seeds(row) for row in rows], "runs that ended well, of those asked for"),
        Column(
            unit.head, [unit.estimate(row.metric) for row in rows], "final, mean over the seeds"
        ),
        Column(
            "to vanilla",
            [unit.signed(row.difference) for row in rows],
            "mean of the differences, seed by seed, with its 95% interval",
        ),
    ]
    if any(row.uncoded is not None for row in rows):
        about = "the same parameters, scored without codecs at the cuts"
        found.insert(3, Column("uncoded", [unit.estimate(row.uncoded) for row in rows], about))
    if any(row.recovered is not None for row in rows):
        about = "(metric - higher floor) / (vanilla - higher floor)"
        found.append(Column("recovered", [_plain(row.recovered) for row in rows], about))
    found += _bytes(table, rows)
    for link in table.links:
        found += _times(table, link)
    return found


def groups(found: Sequence[Column]) -> list[list[Column]]:
    """Return the columns after the first, those of one group together."""
    names = dict.fromkeys(column.group for column in found)
    return [[column for column in found[1:] if column.group == name] for name in names]


def _bytes(table: Table, rows: Sequence[Row]) -> list[Column]:
    target = _target(table)
    sent = [NOTHING if row.num_bytes is None else size(row.num_bytes.value) for row in rows]
    about = f"until a run first scored {target}: vanilla's mean, worse by the margin"
    to = [_reached(row, row.to_target_bytes, size) for row in rows]
    return [
        Column("bytes", sent, "sent in training by all processes, headers included", "bytes"),
        Column("ratio", [_ratio(row) for row in rows], "vanilla's bytes over these", "bytes"),
        Column(f"bytes to {target}", to, about, "bytes"),
        Column("updates", [_updates(row) for row in rows], "of the parameters, by stage", "bytes"),
    ]


def _times(table: Table, link: str) -> list[Column]:
    target, costs = _target(table), [row.costs.get(link) for row in table.rows]
    how = "predicted" if link else "wall-clock"
    group = f"time over {link}" if link else "time"
    to = [
        _reached(row, cost.to_target_s if cost else None, lambda s: f"{_three(s)} s")
        for row, cost in zip(table.rows, costs, strict=True)
    ]
    told = "over vanilla; in brackets its bound, which free communication would give"
    return [
        Column("time", [_time(cost) for cost in costs], f"of training, {how}", group, link),
        Column("speed-up (bound)", [_speedup(cost) for cost in costs], told, group, link),
        Column(f"time to {target}", to, f"{how}, until a run first scored that", group, link),
    ]


def _target(table: Table) -> str:
    return "target" if table.target is None else Unit(table).text(table.target)


def notes(table: Table) -> list[str]:
    """Return what a reader must know beside the table."""
    outcome, section = table.outcome, table.section
    seeds = ", ".join(map(str, table.seeds))
    said = [
        f"Scored on the {outcome.part} part; seeds {seeds}. Intervals are 95%, Student's t over "
        "the seeds; differences are paired by seed. Bytes and times are of training alone."
    ]
    if outcome.interrupted:
        said.append("Stopped before its end: start the same command again to go on.")
    for link, best in outcome.fastest.items():
        layout = f"{best.layout['schedule']} x {best.layout['micro_batches']}"
        where = f" over {link}" if link else ""
        tried = {name: seconds for name, seconds in best.step_s.items() if seconds is not None}
        if tried:
            times = ", ".join(f"{name} {1000 * s:.1f}" for name, s in tried.items())
            said.append(
                f"Vanilla{where} is the fastest of its schedules and micro-batches: {layout} (ms "
                f"per step on {section.probe_steps} steps: {times}); arms have the same layout "
                "unless they set their own."
            )
        else:
            said.append(f"Vanilla{where} is {layout}, as the file says; no other was timed.")
    if section.links:
        said.append(
            f"Accuracy and bytes were taken without a slow link. Times are predicted: the "
            f"decisions of those runs, each at the mean seconds of its kind of step in "
            f"{section.time_steps} steps over the shaped link ({section.time_seeds} run(s) each)."
        )
    said += _floor_notes(table)
    if left_out(outcome.plan):
        said.append(f"Controls left out by the file: {', '.join(left_out(outcome.plan))}.")
    for row in table.rows:
        bad = [f"{count} {status}" for status, count in row.statuses.items() if status != "ok"]
        if bad:
            first = f": {row.errors[0].splitlines()[0]}" if row.errors else ""
            said.append(f"{row.arm.name}: {', '.join(bad)} of {row.num_seeds}{first}")
    return said


def _floor_notes(table: Table) -> list[str]:
    rows = {row.arm.name: row for row in table.rows}
    used = sorted({row.floor for row in table.rows if row.floor is not None})
    said = []
    for name in used:
        floor, vanilla = rows[name].metric, rows[VANILLA.name].metric
        if floor is None or vanilla is None or table.target is None:
            continue
        said.append(f"Recovered is counted from the higher floor, {name!r}.")
        past = floor.value - table.target
        if (past if table.section.higher_is_better else -past) >= 0:
            said.append(
                f"{name!r} comes within the margin of vanilla: on this task and cut, saving "
                "communication proves nothing."
            )
    return said


class Unit:
    """How a table's metric is written: shares of one as percent, all else as it is.

    Args:
        table: whose metric.

    Attributes:
        head: the heading of its column.
        scale: what a value is multiplied by.
    """

    def __init__(self, table: Table) -> None:
        name = table.section.metric
        self._percent = "accuracy" in name
        self.head = f"{name.replace('_', ' ')}{', %' if self._percent else ''}"
        self.scale = 100.0 if self._percent else 1.0
        self._digits = 2 if self._percent else 4

    def text(self, value: float) -> str:
        """Return a value with its unit."""
        return f"{self.scale * value:.{self._digits}f}{'%' if self._percent else ''}"

    def estimate(self, found: Estimate | None) -> str:
        """Return an estimate with half its interval."""
        if found is None:
            return NOTHING
        text = f"{self.scale * found.value:.{self._digits}f}"
        if found.half is not None:
            text += f" ±{self.scale * found.half:.{self._digits}f}"
        return text

    def signed(self, found: Estimate | None) -> str:
        """Return a difference with its interval."""
        if found is None:
            return NOTHING
        value, digits = self.scale * found.value, self._digits
        text = f"{value:+.{digits}f}"
        if found.low is not None and found.high is not None:
            low, high = self.scale * found.low, self.scale * found.high
            text += f" [{low:+.{digits}f}, {high:+.{digits}f}]"
        return text


def size(num_bytes: float) -> str:
    """Return a number of bytes for a person, to three digits.

    Example:
        >>> from freewheel.compare.cells import size
        >>> size(2_097_000_000), size(8_120_000), size(512)
        ('2.10 GB', '8.12 MB', '512 B')
    """
    for factor, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if num_bytes >= factor:
            return f"{_three(num_bytes / factor)} {unit}"
    return f"{num_bytes:.0f} B"


def _three(value: float) -> str:
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def _seeds(row: Row) -> str:
    return str(row.num_ok) if row.num_ok == row.num_seeds else f"{row.num_ok} of {row.num_seeds}"


def _plain(found: Estimate | None) -> str:
    if found is None:
        return NOTHING
    return f"{found.value:.2f}" + ("" if found.half is None else f" ±{found.half:.2f}")


def _ratio(row: Row) -> str:
    return NOTHING if row.byte_ratio is None else f"{_three(row.byte_ratio.value)}x"


def _time(cost: Cost | None) -> str:
    if cost is None or cost.wall_s is None:
        return NOTHING
    half = cost.wall_s.half
    return f"{_three(cost.wall_s.value)}{'' if half is None else f' ±{_three(half)}'} s"


def _speedup(cost: Cost | None) -> str:
    if cost is None or cost.speedup is None:
        return NOTHING
    bound = "" if cost.bound is None else f" ({cost.bound:.2f})"
    return f"{cost.speedup.value:.2f}{bound}"


def _reached(row: Row, found: Estimate | None, text: Callable[[float], str]) -> str:
    if row.arm.kind == "floor" or row.num_ok == 0:
        return NOTHING
    if found is None or row.reached == 0:
        return "not reached"
    count = "" if row.reached == row.num_ok else f" ({row.reached} of {row.num_ok})"
    return f"{text(found.value)}{count}"


def _updates(row: Row) -> str:
    return " / ".join(f"{count:.0f}" for count in row.updates.values()) or NOTHING
