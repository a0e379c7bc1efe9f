"""Saves checkpoints in child processes that are killed, each a little later than the one before.

Run as a script with a folder; prints one JSON line a child: how it ended, and what was found then.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from freewheel.runtime.checkpoints.checkpoint import (
    Checkpoint,
    checkpoints,
    drop_half_saved,
    latest,
    publish,
    save_part,
)

#: What changes a file system, or leads to it, as ``sys.addaudithook`` tells it.
CHANGES = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree")


def save(folder: Path, step: int, keep: int) -> None:
    """Save what two processes would at this step: everything is the step's number."""
    files = {}
    for process in ("stage-0", "stage-1"):
        tensors = {"model/w": torch.full((64,), float(step))}
        values = {"step": step, "model": {"w": {"$tensor": "model/w"}}}
        files.update(save_part(folder, step, process, tensors, values))
    publish(folder, step, files, {"layout": {"stages": 2}}, keep)


def die_at(folder: Path, point: int) -> None:
    """Kill this process at the given file operation under ``folder``."""
    seen, fsync = [0], os.fsync

    def count() -> None:
        seen[0] += 1
        if seen[0] == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES and str(folder) in str(arguments[0]):
            count()

    def counted(handle: int) -> None:
        count()
        fsync(handle)

    sys.addaudithook(hook)
    os.fsync = counted


def check(folder: Path, *more: Checkpoint) -> dict[str, Any]:
    """Return what there is, read and verified; ``more`` are read, too."""
    found = []
    for checkpoint in (*more, *checkpoints(folder)):
        for process in checkpoint.processes():
            tensors, values = checkpoint.read(process)
            assert values["step"] == checkpoint.step
            assert torch.equal(tensors["model/w"], torch.full((64,), float(checkpoint.step)))
        assert len(checkpoint.processes()) == 2
        found.append(checkpoint.step)
    return {"listed": found, "latest": latest(folder).step}


def main(root: Path) -> None:
    for keep in (1, 2):
        point, ended = 0, False
        while not ended:
            point += 1
            folder = root / f"keep-{keep}" / str(point) / "checkpoints"
            for step in (10, 20):
                save(folder, step, keep)
            child = os.fork()
            if child == 0:
                die_at(folder, point)
                save(folder, 30, keep)
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            ended = os.WIFEXITED(status)
            found = check(folder)
            # what was left aside is dropped, and the next save works
            drop_half_saved(folder)
            found["left"] = [p.name for p in folder.iterdir() if p.name.startswith(".")]
            save(folder, 30, keep)
            found["after"] = check(folder)["listed"]
            print(json.dumps({"keep": keep, "point": point, "ended": ended, **found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
