"""Where files of data are looked for, and what is said when they are not there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from freewheel.errors import DataError

#: A folder of data sets, searched before ``./data``.
FOLDER_VARIABLE = "FREEWHEEL_DATA"


class MissingDataError(DataError):
    """A data set is not on this machine; the message says how to fetch it (exit code 3)."""


def data_folders() -> list[Path]:
    """Return the folders that hold data sets: ``$FREEWHEEL_DATA`` where set, then ``./data``."""
    given = os.environ.get(FOLDER_VARIABLE)
    return [*([Path(given)] if given else []), Path("data")]


def find_file(
    data_set: str, names: Sequence[str], system_folders: Sequence[Path], remedy: str
) -> Path:
    """Find one file of a data set.

    Args:
        data_set: its name, and the folder under ``data_folders()`` that holds it.
        names: what the file may be called; the first that exists is taken.
        system_folders: looked at last, for example where a Debian package puts it.
        remedy: the command that fetches it.

    Returns:
        The path of the file.

    Raises:
        MissingDataError: no folder has it; names the folders and the remedy.

    Example:
        >>> from freewheel.streams.finding import find_file
        >>> find_file("stars", ["stars.csv"], [], "./fetch stars")
        Traceback (most recent call last):
        freewheel.streams.finding.MissingDataError: data set 'stars' is not on this machine: \
looked for stars.csv in data/stars; to fetch it: ./fetch stars (or set FREEWHEEL_DATA to the \
folder that holds stars/)
    """
    folders = [*(folder / data_set for folder in data_folders()), *system_folders]
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return folder / name
    raise MissingDataError(
        f"data set {data_set!r} is not on this machine: looked for {' or '.join(names)} in "
        f"{', '.join(str(folder) for folder in folders)}; to fetch it: {remedy} "
        f"(or set {FOLDER_VARIABLE} to the folder that holds {data_set}/)"
    )
