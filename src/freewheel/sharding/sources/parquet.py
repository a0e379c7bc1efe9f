"""Parquet files, by pyarrow (the extra ``freewheel[parquet]``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import ConfigError, DataError, nearest
from freewheel.sharding.sources.base import Source
from freewheel.sharding.sources.text import LABEL_COLUMNS


def open_parquet(path: Path, features: str | None, labels: str | None) -> Source:
    """Open a Parquet file; only one batch of its rows is in memory at a time.

    Args:
        path: of the file.
        features: names of feature columns, comma-separated; by default all numeric ones but the
            labels.
        labels: name of the label column; by default one called label, target, class or y, if any.

    Raises:
        ConfigError: pyarrow is not installed.
        DataError: the file is broken, or has no such column.
    """
    parquet = _pyarrow_parquet()
    schema = _read(path, lambda: parquet.ParquetFile(path)).schema_arrow
    names = list(schema.names)
    lowered = [name.lower() for name in names]
    usual = next((names[lowered.index(name)] for name in LABEL_COLUMNS if name in lowered), None)
    label = labels or usual
    numeric = [name for name in names if _is_numeric(schema.field(name).type) and name != label]
    chosen = numeric if features is None else [name.strip() for name in features.split(",")]
    for name in [*chosen, *([label] if label else [])]:
        if name not in names:
            raise DataError(f"{path} has no column {name!r}{nearest(name, names)}")
        if name != label and not _is_numeric(schema.field(name).type):
            raise DataError(
                f"{path}: column {name!r} has type {schema.field(name).type}; features must be "
                "numbers: encode it, or leave it out with --features"
            )
    rows = ParquetFeatures(path, chosen) if chosen else None
    marks = _labels(path, label) if label else None
    return Source(path, "parquet", rows, marks, tuple(chosen), table=True)


class ParquetFeatures:
    """Columns of a Parquet file as rows of features.

    Args:
        path: of the file.
        columns: names of the columns, all numeric.
    """

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._path, self._columns = path, list(columns)
        self._num_samples = int(_pyarrow_parquet().ParquetFile(path).metadata.num_rows)

    @property
    def num_samples(self) -> int:
        """Number of rows."""
        return self._num_samples

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return (len(self._columns),)

    def batches(self, num_rows: int) -> Iterator[NDArray[Any]]:
        """Yield consecutive batches (B, D); a missing value is NaN."""
        with _pyarrow_parquet().ParquetFile(self._path) as file:
            held = np.empty((0, len(self._columns)))
            # fewer rows may come at the end of a row group: they are held until a batch is full
            parts = file.iter_batches(batch_size=num_rows, columns=self._columns)
            for part in _errors_named(self._path, parts):
                table = [part.column(name).to_numpy(zero_copy_only=False) for name in self._columns]
                held = np.concatenate([held, np.column_stack(table).astype(np.float64)])
                while len(held) >= num_rows:
                    yield held[:num_rows]
                    held = held[num_rows:]
            if len(held):
                yield held


def _labels(path: Path, name: str) -> NDArray[Any]:
    column = _read(path, lambda: _pyarrow_parquet().read_table(path, columns=[name]))[name]
    if column.null_count:
        raise DataError(f"{path}: column {name!r} lacks {column.null_count} labels; fill or drop")
    if _is_numeric(column.type):
        return np.asarray(column.to_numpy())
    coded = column.combine_chunks().dictionary_encode()
    texts = np.array([str(value) for value in coded.dictionary.to_pylist()])
    return np.asarray(texts[coded.indices.to_numpy(zero_copy_only=False)])


def _is_numeric(kind: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    return any(test(kind) for test in tests)


def _pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ConfigError(
            "reading Parquet needs pyarrow: pip install 'freewheel[parquet]'"
        ) from error
    return pyarrow.parquet


def _read(path: Path, action: Any) -> Any:
    import pyarrow as pa

    try:
        return action()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def _errors_named(path: Path, parts: Iterator[Any]) -> Iterator[Any]:
    while True:
        part = _read(path, lambda: next(parts, None))
        if part is None:
            return
        yield part
