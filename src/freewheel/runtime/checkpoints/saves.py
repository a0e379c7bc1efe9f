"""What the coordinator knows of checkpoints: when one is due, and which are whole."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from freewheel.config import Config
from freewheel.errors import CheckpointError
from freewheel.runtime.checkpoints.checkpoint import Checkpoint, drop_half_saved, drop_part, publish
from freewheel.runtime.checkpoints.snapshot import about


class Saves:
    """Gathers the parts of checkpoints and publishes those that are whole.

    Args:
        path: the folder ``checkpoints`` of the run.
        config: ``[checkpoint]`` says when, and how many are kept.
        members: the processes that each save a part.

    Attributes:
        last: the newest checkpoint of this attempt at the run.
        error: why the newest save is not there, if it is not.
    """

    def __init__(self, path: Path, config: Config, members: Sequence[str]) -> None:
        self.path = path
        self.last: Checkpoint | None = None
        self.error: str | None = None
        self._config = config
        self._members = set(members)
        self._answers: dict[int, dict[str, Mapping[str, str] | None]] = {}
        self._due_at = time.monotonic() + config.checkpoint.every_s
        drop_half_saved(self.path)

    def is_due(self) -> bool:
        """Whether ``checkpoint.every_s`` seconds have passed; starts them anew if so."""
        every_s = self._config.checkpoint.every_s
        if not every_s or time.monotonic() < self._due_at:
            return False
        self._due_at = time.monotonic() + every_s
        return True

    def take(self, process: str, step: int, files: Mapping[str, str]) -> bool:
        """Take in that a process has saved its part; return whether the checkpoint is whole now."""
        return self._answer(process, step, files)

    def failed(self, process: str, step: int, error: str) -> None:
        """Take in that a process could not save; the checkpoints before are untouched."""
        self.error = error
        self._answer(process, step, None)

    def _answer(self, process: str, step: int, files: Mapping[str, str] | None) -> bool:
        answers = self._answers.setdefault(step, {})
        answers[process] = files
        if set(answers) != self._members:
            return False
        del self._answers[step]
        parts = [part for part in answers.values() if part is not None]
        if len(parts) < len(answers):
            drop_part(self.path, step)
            return False
        merged = {name: digest for part in parts for name, digest in part.items()}
        keep = self._config.checkpoint.keep
        try:
            self.last = publish(self.path, step, merged, about(self._config), keep)
        except CheckpointError as error:
            self.error = str(error)
            return False
        self.error = None
        return True
