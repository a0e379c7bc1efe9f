"""CSV files: quoted newlines, CRLF, a byte-order mark and a missing last newline are all right."""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import DataError, nearest
from freewheel.sharding.sources.base import Progress, Source, silent
from freewheel.sharding.sources.scratch import Scratch

LABEL_COLUMNS = ("label", "labels", "target", "class", "y")
_ROWS = 4096
_MAX_TEXTS = 1 << 16


def open_csv(
    path: Path,
    features: str | None,
    labels: str | None,
    scratch: Path,
    progress: Progress = silent,
) -> Source:
    """Read a CSV file once, into a binary scratch file; name the line of a broken row.

    The first row is a header if any of its fields is not a number; otherwise columns are called
    0, 1, 2 ... Blank lines are skipped.

    Args:
        path: of the file, UTF-8.
        features: names of feature columns, comma-separated; by default all but the labels.
        labels: name of the label column; by default one called label, target, class or y, if any.
        scratch: folder for the scratch file.
        progress: told of every few thousand rows.

    Raises:
        DataError: a row with too few or too many fields, a feature that is not a number, an
            unclosed quote, bytes that are not UTF-8, or no rows.
    """
    rows = _rows(path)
    line, first = next(rows, (0, []))
    if not first:
        raise DataError(f"{path} is empty: there is no sample to assign")
    has_header = any(_number(text) is None for text in first)
    columns = first if has_header else [str(place) for place in range(len(first))]
    if len(set(columns)) < len(columns):
        raise DataError(f"{path} line {line}: two columns have the same name in {columns}")
    label = _find(path, columns, labels) if labels else _usual(columns)
    places = _feature_places(path, columns, features, label)
    marks = _Labels()
    chosen = [columns[place] for place in places]
    with Scratch(scratch / "rows", np.dtype(np.float64), (len(places),)) as kept:
        batch: list[list[float]] = []
        if not has_header:
            batch.append(_parse(path, line, first, places, chosen))
            marks.add(path, line, first, label)
        for line, fields in rows:
            if len(fields) != len(columns):
                raise DataError(
                    f"{path} line {line}: {len(fields)} fields, but the first row has "
                    f"{len(columns)}; mend or remove the row"
                )
            batch.append(_parse(path, line, fields, places, chosen))
            marks.add(path, line, fields, label)
            if len(batch) == _ROWS:
                kept.append(np.array(batch))
                batch.clear()
                progress(kept.num_samples, None)
        if batch:
            kept.append(np.array(batch))
    if not kept.num_samples:
        raise DataError(f"{path} has a header and no rows: there is no sample to assign")
    found = None if label is None else marks.array()
    rows_kept = kept.features() if places else None
    return Source(path, "csv", rows_kept, found, tuple(chosen), table=True)


class _Labels:
    """Labels as numbers while all are, else as codes of their texts.

    Once there are more than ``_MAX_TEXTS`` different numbers they are no classes, and only their
    values are kept.
    """

    def __init__(self) -> None:
        self._codes: dict[str, int] | None = {}
        self._coded = array("q")
        self._numbers: array[float] | None = array("d")

    def add(self, path: Path, line: int, fields: Sequence[str], place: int | None) -> None:
        if place is None:
            return
        text = fields[place].strip()
        number = _number(text) if self._numbers is not None else None
        if self._numbers is not None and number is not None:
            self._numbers.append(number)
        elif self._codes is None:
            raise DataError(
                f"{path} line {line}: label {text!r} is not a number, and those before it are; "
                "mend the row"
            )
        else:
            self._numbers = None
        if self._codes is not None:
            self._coded.append(self._codes.setdefault(text, len(self._codes)))
            if self._numbers is not None and len(self._codes) > _MAX_TEXTS:
                self._codes = None

    def array(self) -> NDArray[Any]:
        if self._numbers is None:
            texts = np.array(list(self._codes or ()))
            return np.asarray(texts[np.frombuffer(self._coded, np.int64)])
        values = np.array(self._numbers, dtype=np.float64)
        whole = np.isfinite(values).all() and (values == np.floor(values)).all()
        return values.astype(np.int64) if whole else values


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which a row begins, and its fields."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.reader(stream, strict=True)
            line = 1
            try:
                for fields in reader:
                    if fields:
                        yield line, fields
                    line = reader.line_num + 1
            except csv.Error as error:
                raise DataError(
                    f"{path} line {line}: {error}; look for a quote that is not closed"
                ) from error
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{path}, at or after line {line}: not UTF-8 ({error.reason}); convert the file"
                ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _parse(
    path: Path, line: int, fields: Sequence[str], places: Sequence[int], columns: Sequence[str]
) -> list[float]:
    try:
        return [float(fields[place]) for place in places]
    except ValueError:
        for place, column in zip(places, columns, strict=True):
            if _number(fields[place]) is None:
                raise DataError(
                    f"{path} line {line}, column {column!r}: {fields[place]!r} is not a number; "
                    "mend it, or leave the column out with --features"
                ) from None
        raise


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _usual(columns: Sequence[str]) -> int | None:
    lowered = [column.strip().lower() for column in columns]
    return next((lowered.index(name) for name in LABEL_COLUMNS if name in lowered), None)


def _find(path: Path, columns: Sequence[str], name: str) -> int:
    if name not in columns:
        raise DataError(f"{path} has no column {name!r}{nearest(name, columns)}")
    return columns.index(name)


def _feature_places(
    path: Path, columns: Sequence[str], features: str | None, label: int | None
) -> list[int]:
    if features is None:
        return [place for place in range(len(columns)) if place != label]
    return [_find(path, columns, name.strip()) for name in features.split(",")]
