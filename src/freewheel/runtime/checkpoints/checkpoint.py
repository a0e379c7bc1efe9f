"""Checkpoints on disk: written aside, fsynced, renamed; never half of one, never a changed one.

::

    runs/NAME-DATE/checkpoints/step-00000100/
        manifest.json          step, configuration, the SHA-256 of each file and of itself
        stage-0.safetensors    tensors of one process
        stage-0.json           its plain values
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from freewheel.errors import CheckpointError

FORMAT = 1
_NAME = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole checkpoint.

    Args:
        path: its folder.
        step: steps finished when it was taken.
        files: SHA-256 of each file.
        about: what else the manifest says: sections of the configuration it was taken under.
    """

    path: Path
    step: int
    files: Mapping[str, str]
    about: Mapping[str, Any] = field(default_factory=dict)

    def processes(self) -> list[str]:
        """Return the names of the processes whose state it holds."""
        return sorted(name.removesuffix(".json") for name in self.files if name.endswith(".json"))

    def read(self, process: str) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
        """Return the tensors, each read when it is asked for, and plain values of one process.

        Args:
            process: role and rank, with ``-`` between.

        Raises:
            CheckpointError: a file is missing, or is not the one that was saved.
        """
        return Tensors(self._verified(f"{process}.safetensors")), self.values(process)

    def values(self, process: str) -> dict[str, Any]:
        """Return the plain values of one process; raises as ``read``."""
        file = self._verified(f"{process}.json")
        try:
            values: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"cannot read {file}: {error}{_others(self.path)}") from error
        return values

    def _verified(self, name: str) -> Path:
        file, expected = self.path / name, self.files.get(name)
        try:
            found = _sha256(file)
        except OSError:
            found = None
        if expected is None or found is None:
            raise CheckpointError(f"{file} is missing{_others(self.path)}")
        if found != expected:
            raise CheckpointError(
                f"{file} is not the file that was saved: its SHA-256 is {found[:12]}..., the "
                f"manifest says {expected[:12]}...{_others(self.path)}"
            )
        return file


class Tensors(Mapping[str, Tensor]):
    """The tensors of a safetensors file, each read when it is asked for.

    Raises:
        CheckpointError: it is no such file.
    """

    def __init__(self, file: Path) -> None:
        try:
            self._open = safe_open(file, framework="pt")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {file}: {error}{_others(file.parent)}") from error
        self._names: list[str] = list(self._open.keys())  # type: ignore[no-untyped-call]  # theirs

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        tensor: Tensor = self._open.get_tensor(name)  # type: ignore[no-untyped-call]  # theirs
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def save_part(
    folder: Path, step: int, process: str, tensors: Mapping[str, Tensor], values: Mapping[str, Any]
) -> dict[str, str]:
    """Write one process's state aside; return the SHA-256 of each file.

    Args:
        folder: ``checkpoints`` of the run.
        step: steps finished.
        process: role and rank, with ``-`` between.
        tensors: by name; no two may share memory.
        values: what JSON can hold.

    Raises:
        CheckpointError: the disk is full, or cannot be written to.
    """
    aside = _aside(folder, step)
    files = (aside / f"{process}.safetensors", aside / f"{process}.json")
    try:
        aside.mkdir(parents=True, exist_ok=True)
        save_file(dict(tensors), files[0])
        files[1].write_text(json.dumps(values), encoding="utf-8")
        for file in files:
            _sync(file)
        return {file.name: _sha256(file) for file in files}
    except (OSError, SafetensorError) as error:
        for file in files:  # what others have written here is the coordinator's to drop
            _try_to_remove(file)
        raise CheckpointError(
            f"cannot save {process} at step {step} in {folder}: {error}; the checkpoint before it "
            f"is untouched; free some disk, or set run.dir to another one"
        ) from error


def publish(
    folder: Path, step: int, files: Mapping[str, str], about: Mapping[str, Any], keep: int
) -> Checkpoint:
    """Make a checkpoint of parts that are all there.

    Of the others, those beyond the ``keep`` latest are removed, and those of later steps: they
    are of a line that was left when the run went on from an earlier step.

    Raises:
        CheckpointError: the disk is full, or cannot be written to.
    """
    aside, path = _aside(folder, step), folder / f"step-{step:08d}"
    try:
        for name in files:
            _sync(aside / name)  # also finds out that it is there
        manifest = {"format": FORMAT, "step": step, "files": dict(files), **about}
        text = json.dumps({**manifest, "sha256": _digest(manifest)}, indent=2)
        (aside / "manifest.json").write_text(text, encoding="utf-8")
        _sync(aside / "manifest.json")
        _sync(aside)
        if path.exists():
            _remove(path)  # of the same step, of a line that was left
        aside.replace(path)
        _sync(folder)
    except OSError as error:
        drop_part(folder, step)
        raise CheckpointError(
            f"cannot save step {step} in {folder}: {error}; the checkpoint before it is untouched; "
            f"free some disk, or set run.dir to another one"
        ) from error
    found = checkpoints(folder)
    kept = [checkpoint for checkpoint in found if checkpoint.step <= step][-keep:]
    for old in found:
        if old not in kept:
            _remove(old.path)
    return Checkpoint(path, step, dict(files), dict(about))


def checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the whole checkpoints in a folder, oldest first; none that is half is listed."""
    found = []
    for path in _folders(folder):
        try:
            found.append(open_checkpoint(path))
        except CheckpointError:
            continue
    return found


def latest(folder: Path) -> Checkpoint:
    """Return the newest checkpoint.

    Raises:
        CheckpointError: there is none, or it is damaged.
    """
    found = _folders(folder)
    if not found:
        raise CheckpointError(
            f"there is no whole checkpoint in {folder}; set checkpoint.every, or stop a run with "
            f"Ctrl-C, to have one"
        )
    return open_checkpoint(found[-1])


def open_checkpoint(path: Path) -> Checkpoint:
    """Return the checkpoint in a folder named ``step-...``.

    Raises:
        CheckpointError: its manifest was changed, is of another step, or names a file that is not
            there.
    """
    name, file = _NAME.fullmatch(path.name), path / "manifest.json"
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
        digest = manifest.pop("sha256")
    except OSError:
        raise CheckpointError(f"{file} is missing{_others(path)}") from None
    except (ValueError, KeyError, AttributeError, TypeError):
        raise CheckpointError(f"{file} is not the manifest that was saved{_others(path)}") from None
    if manifest.get("format") != FORMAT:
        raise CheckpointError(
            f"{file} has format {manifest.get('format')!r}, this version reads {FORMAT}; resume "
            f"with the version of freewheel that wrote it"
        )
    if digest != _digest(manifest):
        raise CheckpointError(f"{file} is not the manifest that was saved{_others(path)}")
    step, files = int(manifest.pop("step")), dict(manifest.pop("files"))
    del manifest["format"]
    if name is None or int(name[1]) != step:
        raise CheckpointError(
            f"{path} holds the checkpoint of step {step}: it was renamed or swapped{_others(path)}"
        )
    for missing in sorted(files):
        if not (path / missing).exists():
            raise CheckpointError(f"{path / missing} is missing{_others(path)}")
    return Checkpoint(path, step, files, manifest)


def drop_part(folder: Path, step: int) -> None:
    """Remove what was written of a checkpoint that will not be whole."""
    shutil.rmtree(_aside(folder, step), ignore_errors=True)


def drop_half_saved(folder: Path) -> None:
    """Remove what an interrupted save left behind."""
    for path in folder.glob(".step-*") if folder.is_dir() else ():
        shutil.rmtree(path, ignore_errors=True)


def _folders(folder: Path) -> list[Path]:
    """Return the folders that are named as checkpoints, oldest first."""
    found = (
        [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
        if (folder.is_dir())
        else []
    )
    return sorted(found, key=lambda path: int(path.name.partition("-")[2]))


def _others(path: Path) -> str:
    """Say which checkpoint may be gone on from instead of a damaged one."""
    number = _NAME.fullmatch(path.name)
    for other in reversed(_folders(path.parent)):
        if number is None or int(other.name.partition("-")[2]) < int(number[1]):
            return f"; go on from the one before it with: freewheel resume {other}"
    return "; there is no earlier one: start the run anew"


def _aside(folder: Path, step: int) -> Path:
    return folder / f".step-{step:08d}.part"


def _remove(path: Path) -> None:
    """Remove a checkpoint; renamed first, so that no half of it is ever listed."""
    gone = path.with_name(f".{path.name}.old")
    shutil.rmtree(gone, ignore_errors=True)
    try:
        path.rename(gone)
    except OSError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def _try_to_remove(file: Path) -> None:
    try:
        file.unlink(missing_ok=True)
    except OSError:
        return


def _digest(manifest: Mapping[str, Any]) -> str:
    text = json.dumps(manifest, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
