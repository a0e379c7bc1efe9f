"""Run folders as ``freewheel train`` and ``freewheel simulate`` leave them, made of arithmetic."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CONFIG = """
[run]
name = "{name}"
[data]
name = "digits"
[model]
name = "mlp"
[optimizer]
lr = {lr}
[layout]
kind = "{kind}"
"""


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a ``.jsonl`` file."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def make_run(
    path: Path,
    rows: Iterable[Mapping[str, Any]] = (),
    events: Iterable[Mapping[str, Any]] = (),
    summary: Mapping[str, Any] | None = None,
    *,
    name: str = "small",
    kind: str = "pipeline",
    lr: float = 0.1,
) -> Path:
    """Write a run folder."""
    path.mkdir(parents=True)
    config = CONFIG.format(name=json.dumps(name)[1:-1], kind=kind, lr=lr)
    (path / "config.toml").write_text(config, encoding="utf-8")
    write_lines(path / "metrics.jsonl", rows)
    write_lines(path / "events.jsonl", events)
    if summary is not None:
        (path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return path


def row(process: str, step: int, **more: Any) -> dict[str, Any]:
    """Return a step record."""
    return {
        "process": process,
        "step": step,
        "clock": step,
        "epoch": 0,
        "samples": 8,
        "loss": None,
        "metrics": {},
        "lr": 0.1,
        "bytes_sent": 100,
        "messages_sent": 1,
        "bytes_received": 100,
        "compute_s": 0.25,
        "wait_s": 0.5,
        "send_s": 0.25,
        "wait_for": None,
        **more,
    }


def stage_rows(num_stages: int, num_steps: int, start_s: float = 2.0) -> Iterable[dict[str, Any]]:
    """Yield the records of a pipeline: every step takes 1 s; only the last stage knows the loss."""
    for step in range(1, num_steps + 1):
        for stage in range(num_stages):
            last = stage == num_stages - 1
            yield row(
                f"stage {stage}",
                step,
                at_s=start_s + step,
                loss=1 + math.exp(-3 * step / num_steps) if last else None,
                metrics={"accuracy": 1 - math.exp(-3 * step / num_steps)} if last else {},
                wait_for=f"stage {stage - 1 if last else stage + 1}",
            )


def stage_events(num_stages: int, steps: Iterable[int]) -> list[dict[str, Any]]:
    """Return what a pipeline's coordinator notes: who joined, and some evaluations."""
    joined = [
        {"event": "joined", "at_s": 1.0 + stage / 10, "process": f"stage {stage}", "pid": 7}
        for stage in range(num_stages)
    ]
    scored = [
        {
            "event": "evaluated",
            "at_s": 2.5 + step,
            "step": step,
            "metrics": {"accuracy": 0.5 + step / 1000, "loss": 2 / step},
            "seconds": 0.5,
        }
        for step in steps
    ]
    return joined + scored


def summary(num_processes: int, steps: int, **more: Any) -> dict[str, Any]:
    """Return a summary of a run that went well."""
    return {
        "status": "ok",
        "protocol": "vanilla",
        "dataset": "digits",
        "model": "mlp",
        "layout": "pipeline",
        "seed": 0,
        "world_size": num_processes,
        "steps": steps,
        "final_metrics": {"accuracy": 0.75, "loss": 0.5},
        "bytes_sent": 100 * steps * num_processes,
        "wall_s": float(steps),
        "bytes_by_cut": {
            "stage 0 -> stage 1": 50 * steps * num_processes,
            "stage 1 -> stage 0": 50 * steps * num_processes,
        },
        **more,
    }


def pipeline(path: Path, num_steps: int = 40, num_stages: int = 2, name: str = "pipe") -> Path:
    """Write a run of a pipeline that went well."""
    steps = range(num_steps // 4, num_steps + 1, num_steps // 4)
    events = [*stage_events(num_stages, steps), *verdicts(num_steps)]
    done = summary(num_stages, num_steps)
    return make_run(path, stage_rows(num_stages, num_steps), events, done, name=name)


def verdicts(num_steps: int) -> list[dict[str, Any]]:
    """Return what a monitor logs: a statistic that falls below its threshold halfway."""
    return [
        {
            "event": "verdict",
            "at_s": 2.0 + step,
            "process": "stage 1",
            "monitor": "backtest",
            "statistic": 2.0 - 2 * step / num_steps,
            "threshold": 1.0,
            "verdict": "trust" if 2 * step > num_steps else "doubt",
            "step": step,
        }
        for step in range(1, num_steps + 1)
    ]


def workers(path: Path, num_workers: int = 4, num_steps: int = 60, name: str = "asp") -> Path:
    """Write a run of workers that do not keep step: worker ``r`` takes ``1 + r`` seconds a step."""
    ends = sorted(
        (step * (1.0 + rank), rank, step)
        for rank in range(num_workers)
        for step in range(1, num_steps + 1)
        if step * (1 + rank) <= num_steps
    )
    rows = [
        row(
            f"replica {rank}",
            step,
            virtual_s=end,
            version=version,
            staleness=min(version, rank + 1),
            loss=3 / (1 + end / 10),
            compute_s=0.9 + rank,
            wait_s=0.1,
            send_s=0.0,
            wait_for="server 0",
        )
        for version, (end, rank, step) in enumerate(ends)
    ]
    events = [
        {
            "event": "evaluated",
            "at_s": 0.1,
            "virtual_s": float(end),
            "step": end,
            "metrics": {"accuracy": end / num_steps, "loss": 3 / end},
        }
        for end in range(10, num_steps + 1, 10)
    ]
    events.append(
        {
            "event": "dropped",
            "at_s": 0.1,
            "virtual_s": 33.0,
            "process": "replica 1",
            "reason": "late",
        }
    )
    done = summary(num_workers + 1, num_steps, time="virtual", layout="server", protocol="asp")
    done["bytes_by_cut"] = {}
    return make_run(path, rows, events, done, name=name, kind="server", lr=0.05)


def failed(path: Path, error: str = "stage 1 (pid 7) failed: <script>alert(1)</script>") -> Path:
    """Write a run that failed after 10 steps."""
    events = [
        *stage_events(2, [5]),
        {"event": "failed", "at_s": 12.5, "process": "stage 1", "error": error},
    ]
    told = {"status": "failed", "error": error, "protocol": "vanilla", "steps": 10, "samples": 80}
    return make_run(path, stage_rows(2, 10), events, told, name="broken")


def unfinished(path: Path) -> Path:
    """Write a run that was killed while it wrote a line."""
    made = make_run(path, stage_rows(2, 7), stage_events(2, [5]), name="killed")
    with (made / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"process": "stage 1", "st')
    return made
