"""Runs in which something happens to a process, and the same runs without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cli import sets

STEPS = 12

#: Everything that has a state: moments, a schedule, dropout, BatchNorm, codecs.
CONFIG = f"""
[data]
factory = "factories:small_data"
num_samples = 48
batch_size = 8
[model]
factory = "factories:eventful_model"
[optimizer]
name = "adam"
lr = 0.01
[schedule]
name = "cosine"
warmup = 2
[train]
steps = {STEPS}
[checkpoint]
every = 1
"""
LAYOUTS: dict[str, str] = {
    "pipeline": """
[layout]
kind = "pipeline"
stages = 2
[codec]
forward = "delta,per=sample+quantise:8"
backward = "quantise:4"
""",
    "replicas": """
[layout]
kind = "replicas"
workers = 2
""",
}
#: The process in which something happens, and its forward calls in a step.
LAST = {"pipeline": ("stage 1", 4), "replicas": ("replica 1", 1)}


def command(folder: Path, kind: str, **more: Any) -> list[str]:
    """Return the arguments of ``freewheel`` for a run of this layout."""
    file = folder / "run.toml"
    file.write_text(CONFIG + LAYOUTS[kind])
    return ["train", str(file), *sets(**more)]


def incident(folder: Path, kind: str, what: str, step: int) -> dict[str, Any]:
    """Return the settings with which something happens in this step."""
    who, calls = LAST[kind]
    return {
        "model__what": what,
        "model__who": who,
        "model__at": (step - 1) * calls + 1,
        "model__file": str(folder / "happened"),
    }
