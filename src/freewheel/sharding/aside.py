"""A folder that appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from freewheel.errors import ConfigError


@contextmanager
def written_aside(target: Path, overwrite: bool = False) -> Iterator[Path]:
    """Give a new folder beside ``target`` to write into, and put it in place when all went well.

    On any exception, Ctrl-C included, the new folder is removed and ``target`` stays as it was.

    Args:
        target: where the folder is to be.
        overwrite: replace a folder of shards that is there already.

    Raises:
        ConfigError: there is something at ``target`` that may not be replaced.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from freewheel.sharding.aside import written_aside
        >>> with tempfile.TemporaryDirectory() as home:
        ...     with written_aside(Path(home) / "out") as aside:
        ...         _ = (aside / "a.txt").write_text("done")
        ...     (Path(home) / "out" / "a.txt").read_text()
        'done'
    """
    check_target(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.parent / f".{target.name}.{os.getpid()}.part"
    aside.mkdir()
    try:
        yield aside
        if target.exists():
            old = target.parent / f".{target.name}.{os.getpid()}.old"
            target.rename(old)
            aside.rename(target)
            shutil.rmtree(old)
        else:
            aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def check_target(target: Path, overwrite: bool) -> None:
    """Refuse a target that is a file, or a folder that holds anything but old shards to replace.

    Raises:
        ConfigError: as said.
    """
    if not target.exists():
        return
    if not target.is_dir():
        raise ConfigError(f"{target} is a file; name a folder that does not exist yet")
    if any(target.iterdir()):
        if not overwrite:
            raise ConfigError(
                f"{target} exists and is not empty; choose another folder, or allow overwriting"
            )
        if not (target / "manifest.json").exists():
            raise ConfigError(
                f"{target} holds no manifest.json, so it is no folder of shards and is not "
                "overwritten; choose another folder"
            )
