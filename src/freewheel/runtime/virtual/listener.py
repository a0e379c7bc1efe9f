"""What a coordinator does for a run in virtual time: it hears what roles tell, and writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from freewheel.config import Config
from freewheel.observe.run_folder import RunFolder
from freewheel.runtime.checkpoints.saves import Saves
from freewheel.transport.base import Message


class Listener:
    """Writes records, events, evaluations and checkpoints into a run folder, all times virtual.

    Args:
        folder: the run's.
        config: ``[checkpoint]`` says which checkpoints are kept.
        members: role and rank of all.
        say: is called with a line for a person after each evaluation.

    Attributes:
        evaluations: so far.
        train_loss: of the last step whose loss is known.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: Config,
        members: Sequence[str],
        say: Callable[[str], None],
    ) -> None:
        self.folder = folder
        self.saves = Saves(folder.path / "checkpoints", config, members)
        self.evaluations: list[dict[str, Any]] = []
        self.train_loss: float | None = None
        self._say = say
        self._hear: dict[str, Callable[[Message, float], None]] = {
            "records": self._on_records,
            "evaluated": self._on_evaluated,
            "event": self._on_event,
            "saved": self._on_saved,
            "unsaved": self._on_unsaved,
        }

    def hear(self, message: Message, now_s: float) -> None:
        """Take in one message; ``now_s`` is the sender's virtual time."""
        hear = self._hear.get(message.kind)
        if hear is not None:
            hear(message, now_s)

    def _on_records(self, message: Message, _: float) -> None:
        rows: list[Mapping[str, Any]] = message.meta["rows"]
        # the wall clock says nothing of a run in virtual time
        self.folder.records([{k: v for k, v in row.items() if k != "at_s"} for row in rows])
        for row in rows:
            if row["loss"] is not None:
                self.train_loss = row["loss"]

    def _on_evaluated(self, message: Message, now_s: float) -> None:
        row = {**message.meta, "seconds": 0.0, "virtual_s": now_s}
        self.evaluations.append(row)
        self.folder.event("evaluated", **row)
        scores = "  ".join(f"{name} {value:.4f}" for name, value in row["metrics"].items())
        self._say(f"step {row['step']}  virtual {now_s:.2f} s  {scores}")

    def _on_event(self, message: Message, now_s: float) -> None:
        what = dict(message.meta)
        kind = what.pop("event")
        self.folder.event(kind, process=message.sender, virtual_s=now_s, **what)

    def _on_saved(self, message: Message, now_s: float) -> None:
        step, files = message.meta["step"], message.meta["files"]
        if self.saves.take(message.sender, step, files):
            self.folder.event("checkpoint", step=step, virtual_s=now_s)

    def _on_unsaved(self, message: Message, now_s: float) -> None:
        step, error = message.meta["step"], message.meta["error"]
        self.saves.failed(message.sender, step, error)
        self.folder.event("unsaved", process=message.sender, error=error, virtual_s=now_s)
        self._say(f"not saved: {error}")
