"""Finds a run that is to be gone on with, and the checkpoint to go on from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from freewheel.config import Config, load_config
from freewheel.errors import ConfigError
from freewheel.runtime.checkpoints.checkpoint import Checkpoint, latest, open_checkpoint


@dataclass(frozen=True, slots=True)
class Earlier:
    """A run that was stopped, or died, and where it goes on.

    Args:
        run_dir: its folder.
        checkpoint: where to go on from.
        config: its own, with what was overridden.
    """

    run_dir: Path
    checkpoint: Checkpoint
    config: Config


def find_run(path: Path, overrides: Sequence[str] = ()) -> Earlier:
    """Find a run and its newest checkpoint.

    Args:
        path: a run folder, or one of its checkpoints (``RUN/checkpoints/step-...``), to go on
            from that one.
        overrides: settings to change, such as ``"layout.stages=3"``.

    Raises:
        ConfigError: this is neither, or a setting is not valid.
        CheckpointError: there is no checkpoint, or it is damaged.
    """
    is_checkpoint = path.parent.name == "checkpoints"
    run_dir = path.parent.parent if is_checkpoint else path
    if not (run_dir / "config.toml").exists():
        raise ConfigError(
            f"{str(path)!r} is no run folder; give one that `freewheel train` made, such as "
            f"runs/NAME-DATE, or a checkpoint in it"
        )
    config = load_config(run_dir / "config.toml", overrides)
    before = load_config(run_dir / "config.toml")
    checkpoint = open_checkpoint(path) if is_checkpoint else latest(run_dir / "checkpoints")
    return Earlier(run_dir, checkpoint, without_stale_cuts(config, before))


def without_stale_cuts(config: Config, before: Config) -> Config:
    """Return a configuration without the cuts that were resolved for another number of stages."""
    layout = config.layout
    if layout.stages == before.layout.stages or layout.cuts != before.layout.cuts:
        return config
    layout = layout.model_copy(update={"cuts": "default"})
    return config.model_copy(update={"layout": layout})
