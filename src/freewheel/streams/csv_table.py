"""The ``csv`` data set: a table in a CSV file, some columns features and one the label."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from freewheel.errors import ConfigError, DataError, nearest
from freewheel.streams.base import DataSpec, Source, Split, SubsetSplit, TensorSplit
from freewheel.streams.csv import CsvRow, csv_rows, file_chunks
from freewheel.streams.parts import carve, limited
from freewheel.streams.registry import datasets

_TASKS = ("classification", "regression")


@dataclass(slots=True)
class _Table:
    """The columns that were asked for: numbers row by row, labels as they are written."""

    features: list[str]
    numbers: array[float] = field(default_factory=lambda: array("f"))
    labels: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)

    def inputs(self) -> Tensor:
        flat = np.frombuffer(self.numbers, dtype=np.float32).copy()
        return torch.from_numpy(flat.reshape(len(self.labels), len(self.features)))


@datasets.register("csv")
def csv_table(
    path: str,
    label: str,
    features: Sequence[str] | None = None,
    task: str = "classification",
    test_path: str | None = None,
    delimiter: str = ",",
    encoding: str = "utf-8-sig",
    chunk_bytes: int = 1 << 16,
    limit: int | None = None,
    seed: int = 0,
) -> Source:
    """A table in a CSV file whose first row names the columns.

    A tenth of the rows validates and a tenth tests (where there is no ``test_path``), always the
    same ones. Inputs are float32 ``[batch, num_features]``, as written in the file; targets int64
    ``[batch]``, classes in ascending order (numbers by value, words by alphabet), or for a
    regression float32 ``[batch, 1]``.

    Args:
        path: of the file.
        label: the column to predict.
        features: the columns to predict it from; None for all others.
        task: ``"classification"`` or ``"regression"``.
        test_path: a second file of the same columns, to test on.
        delimiter: one character between fields.
        encoding: of the file; the default is UTF-8 with or without a byte-order mark.
        chunk_bytes: how much is read at a time.
        limit: train on so many rows, chosen by ``seed``.
        seed: for ``limit``.

    Raises:
        ConfigError: an unknown task or column, or a limit out of range.
        DataError: no such file, no rows, or a row that is broken; names the line and the column.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from freewheel.streams.csv_table import csv_table
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "pets.csv"
        ...     _ = path.write_text("kg,pet\\n4,cat\\n20,dog\\n5,cat\\n")
        ...     source = csv_table(str(path), label="pet")
        >>> source.spec.num_classes, source.train.targets(torch.arange(3))
        (2, tensor([0, 1, 0]))
    """
    if task not in _TASKS:
        raise ConfigError(f"unknown task {task!r} of data set 'csv'{nearest(task, _TASKS)}")
    if len(delimiter) != 1:
        raise ConfigError(f"delimiter must be one character, got {delimiter!r}")
    asked = list(features) if features is not None else None

    def read(name: str, columns: list[str] | None) -> _Table:
        chunks = file_chunks(Path(name), chunk_bytes)
        return _read(csv_rows(chunks, name, delimiter, encoding), name, label, columns)

    table = read(path, asked)
    classes = _classes(table.labels) if task == "classification" else None
    whole = TensorSplit(table.inputs(), _targets(table, path, label, classes))
    tenth = len(whole) // 10
    test: Split
    if test_path is None:
        *held_out, rest = carve(len(whole), (tenth, tenth))
        validation, test = (SubsetSplit(whole, part) for part in held_out)
    else:
        held, rest = carve(len(whole), (tenth,))
        validation = SubsetSplit(whole, held)
        other = read(test_path, table.features)
        test = TensorSplit(other.inputs(), _targets(other, test_path, label, classes))
    shape = (len(table.features),)
    if classes is None:
        spec = DataSpec("csv", shape, torch.float32, None, "regression", (1,))
    else:
        spec = DataSpec("csv", shape, torch.float32, len(classes), "classification")
    return Source("csv", spec, limited(SubsetSplit(whole, rest), limit, seed), validation, test)


def _read(rows: Iterator[CsvRow], name: str, label: str, features: list[str] | None) -> _Table:
    header = next(rows, None)
    if header is None:
        raise DataError(f"{name} has no rows; the first must name the columns")
    names = [column.strip() for column in header.fields]
    repeated = sorted({column for column in names if names.count(column) > 1})
    if repeated:
        raise DataError(
            f"{name}, line {header.line}: column {repeated[0]!r} is named twice; each needs a "
            "name of its own"
        )
    table = _Table([c for c in names if c != label] if features is None else features)
    for column in (label, *table.features):
        if column not in names:
            raise ConfigError(f"{name} has no column {column!r}{nearest(column, names)}")
    if not table.features:
        raise ConfigError(f"{name} has no column beside the label {label!r} to predict it from")
    places = [(column, names.index(column)) for column in table.features]
    label_place = names.index(label)
    for row in rows:
        if len(row.fields) != len(names):
            raise DataError(
                f"{name}, line {row.line}: {len(row.fields)} fields, but the header (line "
                f"{header.line}) has {len(names)}; mend or remove that line"
            )
        table.numbers.extend(
            _number(row.fields[place], name, row.line, column) for column, place in places
        )
        table.labels.append(row.fields[label_place].strip())
        table.lines.append(row.line)
    if not table.labels:
        raise DataError(f"{name} has a header but no rows; at least 1 is needed")
    return table


def _number(text: str, name: str, line: int, column: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise DataError(
            f"{name}, line {line}, column {column!r}: {text!r} is not a number; mend it, or leave "
            "the column out of features"
        ) from None


def _classes(labels: list[str]) -> list[str]:
    known = set(labels)
    try:
        return sorted(known, key=float)
    except ValueError:
        return sorted(known)


def _targets(table: _Table, name: str, label: str, classes: list[str] | None) -> Tensor:
    if classes is None:
        values = [
            _number(text, name, line, label)
            for text, line in zip(table.labels, table.lines, strict=True)
        ]
        return torch.tensor(values, dtype=torch.float32).unsqueeze(1)
    number_of = {text: number for number, text in enumerate(classes)}
    for text, line in zip(table.labels, table.lines, strict=True):
        if text not in number_of:
            raise DataError(
                f"{name}, line {line}, column {label!r}: class {text!r} is not among those to "
                f"train on{nearest(text, classes)}"
            )
    return torch.tensor([number_of[text] for text in table.labels], dtype=torch.int64)
