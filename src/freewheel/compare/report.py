"""The files of a comparison: results as JSON, CSV and Markdown, and the page."""

from __future__ import annotations

import csv
import json
import os
import platform
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from freewheel.compare.cells import columns, notes
from freewheel.compare.page import page
from freewheel.compare.statistics import Estimate, mean
from freewheel.compare.table import Row, Table

_PACKAGES = ("freewheel", "torch", "numpy", "scipy", "pyzmq", "msgpack", "scikit-learn")


def write_all(table: Table, folder: Path, command: str) -> dict[str, Any]:
    """Write ``results.json``, ``results.csv``, ``units.csv``, ``results.md`` and ``results.html``.

    Args:
        table: what was measured.
        folder: where to.
        command: what a person types to get it again.

    Returns:
        What ``results.json`` holds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = results(table, command)
    _write(folder / "results.json", json.dumps(found, indent=1, allow_nan=False) + "\n")
    _write(folder / "results.md", markdown(table, command))
    _write(folder / "results.html", page(table, command))
    heads = [column.full_head for column in columns(table)]
    cells = [list(line) for line in zip(*(c.cells for c in columns(table)), strict=True)]
    _write_csv(folder / "results.csv", heads, cells)
    _write_csv(folder / "units.csv", *_units(table))
    return found


def results(table: Table, command: str) -> dict[str, Any]:
    """Return a results file in the form of all our benchmarks, with the rows of the table."""
    units = [*table.outcome.units.values(), *table.outcome.times.values()]
    loads = [unit.load for unit in units]
    plan = table.outcome.plan
    return {
        "name": plan.name,
        "about": table.section.about,
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "tiny": False,
        "machine": _machine(),
        "versions": _versions(),
        "load": _load(loads),
        "took_s": round(sum(unit.took_s for unit in units), 1),
        "seeds": list(table.seeds),
        "settings": {
            "part": table.outcome.part,
            "compare": table.section.model_dump(mode="json"),
            "run": _plain(plan.base),
        },
        "arms": [_arm(table, row) for row in table.rows],
        "headline": {},
        "target": table.target,
        "rows": [_row(row) for row in table.rows],
        "notes": notes(table),
    }


def markdown(table: Table, command: str) -> str:
    """Return the table and its notes as Markdown."""
    found = columns(table)
    lines = [f"# {table.outcome.plan.name}", ""]
    lines += [table.section.about.strip(), ""] if table.section.about.strip() else []
    lines += [f"`{command}`", ""]
    lines.append("| " + " | ".join(column.full_head for column in found) + " |")
    lines.append("|---" + "|---:" * (len(found) - 1) + "|")
    for cells in zip(*(column.cells for column in found), strict=True):
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    lines += ["", *(f"- {note}" for note in notes(table)), ""]
    lines += [f"- *{column.full_head}*: {column.about}." for column in found if column.about]
    return "\n".join(lines) + "\n"


def _arm(table: Table, row: Row) -> dict[str, Any]:
    return {
        "name": row.arm.name,
        "kind": row.arm.kind,
        "of": row.arm.of,
        "about": row.arm.about,
        "sections": _plain(row.arm.sections),
        "metrics": {key: _summary(values) for key, values in table.per_seed(row.arm).items()},
        "seeds": list(table.seeds),
        "failures": list(row.errors),
    }


def _summary(values: Sequence[float | None]) -> dict[str, Any]:
    finite = [value for value in values if value is not None]
    found = mean(finite)
    return {
        "median": statistics.median(finite) if finite else None,
        "mean": None if found is None else found.value,
        "mean_interval": _interval(found),
        "values": list(values),
    }


def _interval(found: Estimate | None) -> list[float] | None:
    if found is None or found.low is None or found.high is None:
        return None
    return [found.low, found.high]


def _row(row: Row) -> dict[str, Any]:
    values = asdict(row)
    values["arm"] = row.arm.name
    values["kind"] = row.arm.kind
    return values


def _units(table: Table) -> tuple[list[str], list[list[Any]]]:
    heads = [
        *("arm", "kind", "seed", "status", table.section.metric, "bytes", "messages", "steps"),
        *("wall_s", "free_s", "load", "took_s", "error"),
    ]
    lines = []
    for arm in table.outcome.arms:
        for seed in table.seeds:
            unit = table.outcome.units.get((arm.name, seed))
            if unit is None:
                lines.append([arm.name, arm.kind, seed, "not run"])
                continue
            keys = ("metric", "bytes", "messages", "steps", "wall_s", "free_s")
            measured = [unit.measured.get(key) for key in keys]
            tail = [unit.load, unit.took_s, unit.error]
            lines.append([arm.name, arm.kind, seed, unit.status, *measured, *tail])
    return heads, lines


def _load(loads: Sequence[float]) -> dict[str, Any]:
    """Return the load averages (1 minute) before the first run, now, and before each run."""
    now = round(os.getloadavg()[0], 2)
    if not loads:
        return {"before": now, "after": now}
    during = {"median": statistics.median(loads), "max": max(loads)}
    return {"before": loads[0], "after": now, "during": during}


def _plain(sections: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(sections, default=str))
    return found


def _machine() -> dict[str, Any]:
    """Return cores, processor, memory in GiB and the system; no name of host or user."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kib = _first("/proc/meminfo", r"MemTotal:\s*(\d+) kB")
    release = re.match(r"\d+\.\d+", platform.release())
    return {
        "cores": cores,
        "cpu_model": _first("/proc/cpuinfo", r"model name\s*:\s*(.+)") or platform.machine(),
        "memory_gib": round(int(kib) / 2**20, 1) if kib else None,
        "system": f"{platform.system()} {release.group() if release else ''}".strip(),
    }


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _first(path: str, pattern: str) -> str | None:
    try:
        match = re.search(pattern, Path(path).read_text(encoding="utf-8"))
    except OSError:
        return None
    return match.group(1).strip() if match else None


def _write(path: Path, text: str) -> None:
    aside = path.with_suffix(path.suffix + ".part")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def _write_csv(path: Path, heads: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        writer.writerows(lines)
