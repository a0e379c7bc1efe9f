"""From a run folder to the numbers of a comparison."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from freewheel.observe.run_folder import read_rows

#: Steps at the start of a run, or of a probe, that no time is taken from.
WARM_UP = 5

Rows = Sequence[Mapping[str, Any]]


def measure(folder: Path, metric: str) -> dict[str, Any]:
    """Return what one run reached and what it cost, without evaluation and telemetry.

    The first step's seconds count as the median of the others': in it processes also wait for each
    other's start.

    Args:
        folder: the run folder; of a run that failed, as far as it came.
        metric: a name in ``final_metrics``.

    Returns:
        Plain values: ``metric``, ``metrics``, ``bytes``, ``messages``, ``steps``, ``wall_s``,
        ``compute_s`` and ``updates`` by process, ``free_s`` (the compute of the slowest process:
        the time with free communication), ``kinds`` (exact steps of each kind), ``alone`` (steps
        taken without any message, by round), ``curve`` (a list of ``[step, metric, bytes,
        seconds]``, one for each evaluation).
    """
    events = read_rows(folder / "events.jsonl")
    records = Records(read_rows(folder / "metrics.jsonl"), events)
    summary = _summary(folder)
    reached = summary.get("final_metrics", {})
    compute = {name: sum(its) for name, its in records.seconds(_compute).items()}
    return {
        "metric": reached.get(metric),
        "metrics": reached,
        "bytes": records.sent(),
        "messages": sum(int(row["messages_sent"]) for row in records.rows),
        "steps": max((int(row["step"]) for row in records.rows), default=0),
        "wall_s": round(records.wall_s(), 4),
        "compute_s": {name: round(value, 4) for name, value in compute.items()},
        "free_s": round(max(compute.values(), default=0.0), 4),
        "updates": {
            name: sum(int(row.get("updates", 1)) for row in its)
            for name, its in records.by_process.items()
        },
        "kinds": dict(Counter(next(iter(records.kinds.values()), []))),
        "alone": _alone(events),
        "curve": [
            [
                int(event["step"]),
                float(event["metrics"][metric]),
                records.sent(event["step"]),
                round(records.wall_s(event["step"]), 4),
            ]
            for event in events
            if event.get("event") == "evaluated" and metric in event["metrics"]
        ],
        "evaluation": summary.get("evaluation", {}),
    }


class Records:
    """The records of a run, by process.

    The kind of an exact step is ``"sync"``, or ``"after coast"``, ``"after replay"`` ... where
    steps without messages went before it: their time is in its record.

    Args:
        rows: of ``metrics.jsonl``.
        events: of ``events.jsonl``.
    """

    def __init__(self, rows: Rows, events: Rows) -> None:
        found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: (row["process"], row["step"])):
            found[row["process"]].append(row)
        rounds = {event["step"]: event["round"] for event in events if event["event"] == "alone"}
        self.rows = rows
        self.by_process = dict(found)
        self.kinds = {name: _kinds(its, rounds) for name, its in self.by_process.items()}

    def sent(self, until: int | None = None) -> int:
        """Return the bytes sent by all up to a step."""
        return sum(int(row["bytes_sent"]) for row in self.rows if _before(row, until))

    def wall_s(self, until: int | None = None) -> float:
        """Return the seconds of the slowest process up to a step."""
        return max(
            (
                sum(
                    s
                    for s, row in zip(its, self.by_process[name], strict=True)
                    if _before(row, until)
                )
                for name, its in self.seconds(_wall).items()
            ),
            default=0.0,
        )

    def seconds(self, of: Callable[[Mapping[str, Any]], float]) -> dict[str, list[float]]:
        """Return seconds of each record, by process, without the wait of the start."""
        return {name: _without_start([*map(of, its)]) for name, its in self.by_process.items()}

    def late(self) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
        """Return kind and record of the steps after the warm-up, or of all where there are few."""
        pairs = {
            name: list(zip(self.kinds[name], its, strict=True))
            for name, its in self.by_process.items()
        }
        return {name: its[WARM_UP:] or its for name, its in pairs.items()}


def step_seconds(folder: Path) -> dict[str, dict[str, float]]:
    """Return the seconds of one exact step of each kind, after the warm-up.

    Args:
        folder: of a run that ended well.

    Returns:
        By kind of step: ``wall_s``, the mean over steps of the slowest process's, and ``free_s``,
        the mean compute of the slowest process.
    """
    late = _records(folder).late()
    found: dict[str, dict[str, float]] = {}
    for kind in sorted({kind for its in late.values() for kind, _ in its}):
        of_kind = [[row for its_kind, row in its if its_kind == kind] for its in late.values()]
        found[kind] = {
            "wall_s": max(statistics.fmean(map(_wall, rows)) for rows in of_kind if rows),
            "free_s": max(statistics.fmean(map(_compute, rows)) for rows in of_kind if rows),
        }
    return found


def typical_step_s(folder: Path) -> float:
    """Return the median seconds of a step of the slowest process, after the warm-up."""
    late = _records(folder).late()
    return max(statistics.median(_wall(row) for _, row in its) for its in late.values())


def _records(folder: Path) -> Records:
    return Records(read_rows(folder / "metrics.jsonl"), read_rows(folder / "events.jsonl"))


def _kinds(rows: Rows, rounds: Mapping[int, str]) -> list[str]:
    kinds, finished = [], 0
    for row in rows:
        alone = row["step"] > finished + 1
        kinds.append(f"after {rounds.get(finished, 'a gap')}" if alone else "sync")
        finished = row["step"]
    return kinds


def _alone(events: Rows) -> dict[str, int]:
    steps: Counter[str] = Counter()
    for event in events:
        if event["event"] == "alone":
            steps[event["round"]] += int(event["steps"])
    return dict(steps)


def _before(row: Mapping[str, Any], until: int | None) -> bool:
    return until is None or row["step"] <= until


def _wall(row: Mapping[str, Any]) -> float:
    return float(row["compute_s"] + row["wait_s"] + row["send_s"])


def _compute(row: Mapping[str, Any]) -> float:
    return float(row["compute_s"])


def _without_start(values: list[float]) -> list[float]:
    return [statistics.median(values[1:]), *values[1:]] if len(values) > 1 else values


def _summary(folder: Path) -> dict[str, Any]:
    path = folder / "summary.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found
