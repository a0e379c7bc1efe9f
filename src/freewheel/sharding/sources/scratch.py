"""Rows parsed once from text or images and kept in a temporary binary file for later passes."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from freewheel.sharding.sources.base import StreamFeatures


class Scratch:
    """A file of rows that is written once and then read as often as needed.

    Args:
        path: of the file; its folder is the caller's to remove.
        dtype: of one value.
        sample_shape: shape of one sample.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from freewheel.sharding.sources.scratch import Scratch
        >>> with tempfile.TemporaryDirectory() as home:
        ...     with Scratch(Path(home) / "rows", np.dtype("f8"), (1,)) as scratch:
        ...         scratch.append(np.array([[1.0], [2.0]]))
        ...     [batch.tolist() for batch in scratch.features().batches(2)]
        [[[1.0], [2.0]]]
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], sample_shape: tuple[int, ...]) -> None:
        self._path, self._dtype, self._sample_shape = path, dtype, sample_shape
        self._file: IO[bytes] | None = None
        self.num_samples = 0

    def __enter__(self) -> Scratch:
        self._file = self._path.open("wb")
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, rows: NDArray[Any]) -> None:
        """Write rows (B, *sample_shape)."""
        if self._file is not None:
            self._file.write(np.ascontiguousarray(rows, dtype=self._dtype).tobytes())
            self.num_samples += len(rows)

    def features(self) -> StreamFeatures:
        """Return what was written."""
        return StreamFeatures(
            str(self._path),
            lambda: self._path.open("rb"),
            self._dtype,
            (self.num_samples, *self._sample_shape),
        )
