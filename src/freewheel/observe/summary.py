"""The summary of a run: what other programs read, and what a person sees at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from freewheel.config import Config


def make_summary(
    config: Config,
    dataset: str,
    done: Mapping[str, Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
    train_loss: float | None,
    steps: int,
    total_s: float,
    threads: int,
) -> dict[str, Any]:
    """Bring the totals of all processes together.

    Evaluation and telemetry are kept out of ``bytes_sent``, ``messages_sent`` and ``wall_s``.

    Args:
        config: resolved.
        dataset: the data that was really read.
        done: what each process reported at its end.
        evaluations: in order; the last one gives the final figures.
        train_loss: of the last step.
        steps: taken.
        total_s: from start to end, processes' starts and evaluations included.
        threads: of each process.

    Returns:
        Plain values, for ``summary.json``.
    """
    final = dict(evaluations[-1]["metrics"]) if evaluations else {}

    def over(phase: str, key: str) -> int:
        return sum(int(totals["traffic"][phase][key]) for totals in done.values())

    def total(key: str) -> float:
        return round(sum(float(totals[key]) for totals in done.values()), 6)

    # every stage of a pipeline sees all samples; replicas share them out
    seen = [int(totals["samples"]) for totals in done.values()]
    samples = max(seen, default=0) if config.layout.kind == "pipeline" else sum(seen)
    return {
        "status": "ok",
        "protocol": config.protocol_name,
        "dataset": dataset,
        "model": config.model.name or config.model.factory,
        "layout": config.layout.kind,
        "seed": config.run.seed,
        "world_size": len(done),
        "threads_per_process": threads,
        "steps": steps,
        "samples": samples,
        "final_loss": final.get("loss"),
        "final_accuracy": final.get("accuracy"),
        "final_metrics": final,
        "train_loss": train_loss,
        "bytes_sent": over("train", "bytes_sent"),
        "messages_sent": over("train", "messages_sent"),
        "wall_s": round(max((float(t["wall_s"]) for t in done.values()), default=0.0), 6),
        "compute_s": total("compute_s"),
        "wait_s": total("wait_s"),
        "send_s": total("send_s"),
        "total_s": round(total_s, 6),
        "evaluation": {
            "bytes_sent": over("evaluate", "bytes_sent"),
            "seconds": round(sum(float(row["seconds"]) for row in evaluations), 6),
        },
        "telemetry_bytes_sent": over("telemetry", "bytes_sent"),
        "bytes_by_cut": {
            f"{name} -> {peer}": int(num_bytes)
            for name, totals in sorted(done.items())
            for peer, num_bytes in sorted(totals["bytes_to"].items())
        },
    }
