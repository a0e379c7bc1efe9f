"""One run of a pipeline in this process, by the roles of a real run, and what it reached."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.harness import Metrics
from freewheel.config import parse_config
from freewheel.errors import NonFiniteError
from freewheel.runtime.pieces import Given, Pieces
from freewheel.runtime.virtual.pipeline import simulate_pipeline
from freewheel.streams.base import Source
from freewheel.streams.registry import load

Sections = Mapping[str, Mapping[str, Any]]


@cache
def source_of(name: str, scored: str) -> Source:
    """Return a data set whose ``test`` part is the one that shall be scored."""
    source = load(name, limit=None, fallback=None, seed=0)
    return source if scored == "test" else replace(source, test=source.validation)


def run(sections: Sections, seed: int, scored: str = "test") -> Metrics:
    """Train once; return what was reached and what it cost.

    Args:
        sections: of a run file; ``data.name`` is a data set of ours.
        seed: of the initial parameters and of the order of samples.
        scored: ``"test"`` or ``"validation"``.

    Returns:
        ``accuracy`` (percent), ``loss``, ``bytes`` (training), ``exchanges`` (real steps),
        ``jumps``, ``rolled_back``, ``updates_alone`` (steps on kept tensors), ``diverged``: 1
        where the loss was no number any more; accuracy then is that of guessing.
    """
    with tempfile.TemporaryDirectory(prefix="freewheel-") as folder:
        config = parse_config({**sections, "run": {"dir": folder, "seed": seed}})
        source = source_of(str(config.data.name), scored)
        given = Given(data=source)
        bare = config.model_copy(update={"data": config.data.model_copy(update={"name": None})})
        model = bare.model.model_copy(update=Pieces(bare, given).shapes(source))
        bare = bare.model_copy(update={"model": model})
        try:
            path, summary = simulate_pipeline(bare, Pieces(bare, given))
        except NonFiniteError:
            guess = 100.0 / (source.spec.num_classes or 1)
            return {"accuracy": guess, "loss": None, "bytes": None, "diverged": 1}
        return {**_reached(summary), **_decisions(path), "diverged": 0}


def _reached(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "accuracy": 100.0 * summary["final_accuracy"],
        "loss": summary["final_loss"],
        "bytes": summary["bytes_sent"],
        "virtual_s": summary["virtual_s"],
    }


def _decisions(path: Path) -> dict[str, int]:
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    events = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    of_last = [row for row in rows if row["loss"] is not None]
    count = Counter(event["event"] for event in events)
    stages = len({row["process"] for row in rows})
    return {
        "exchanges": len(of_last),
        "jumps": sum(event.get("round") == "coast" for event in events),
        "rolled_back": count["rollback"] // stages,
        "updates": sum(row.get("updates", 1) for row in of_last),
    }
