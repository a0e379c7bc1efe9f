"""What every source gives, and raw binary streams that most of them come down to."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import DataError
from freewheel.sharding.samples import Features, Samples, collect

#: Told how many samples were read so far, and of how many (None if that is not known).
Progress = Callable[[int, int | None], None]


def silent(done: int, total: int | None) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Source:
    """A source that was opened: labels in memory, features to be read in batches.

    Args:
        path: what was opened.
        kind: npy, npz, idx, csv, parquet, images or dataset.
        features: rows of features, or None.
        labels: shape (N,) or (N, L), or None.
        columns: names of the features, where the source has them.
        table: its columns are of unlike units, so features should be standardised.
        labels_path: the file of the labels, where they have one of their own.
        digest: SHA-256 of its content, where it is no file.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from freewheel.sharding.sources import open_source
        >>> with tempfile.TemporaryDirectory() as home:
        ...     np.savez(Path(home) / "a.npz", features=np.zeros((3, 2)), labels=np.arange(3))
        ...     source = open_source(Path(home) / "a.npz", Path(home))
        >>> source.kind, source.labels.tolist()
        ('npz', [0, 1, 2])
    """

    path: Path
    kind: str
    features: Features | None
    labels: NDArray[Any] | None
    columns: tuple[str, ...] = field(default=())
    table: bool = False
    labels_path: Path | None = None
    digest: str | None = None

    def samples(self) -> Samples:
        """Return the samples, checked to be as many as the labels and at least one.

        Raises:
            DataError: as said.
        """
        try:
            return collect(self.features, self.labels)
        except DataError as error:
            raise DataError(f"{self.path}: {error}") from error

    def sha256(self) -> str:
        """Return a hash of the file's content, or of the names and contents of a folder's files."""
        if self.digest is not None:
            return self.digest
        if self.path.is_file():
            with self.path.open("rb") as stream:
                return hashlib.file_digest(stream, "sha256").hexdigest()
        whole = hashlib.sha256()
        for file in sorted(path for path in self.path.rglob("*") if path.is_file()):
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            whole.update(f"{file.relative_to(self.path).as_posix()}\0{content}\n".encode())
        return whole.hexdigest()


class StreamFeatures:
    """Rows stored one after the other in a stream that can be opened again for every pass.

    Args:
        name: what to call it in messages.
        open_at_rows: opens the stream at its first row.
        dtype: of one value, as stored.
        shape: (N, *sample_shape).

    Raises:
        DataError: when a batch is read and the stream ends too early.

    Example:
        >>> import io
        >>> import numpy as np
        >>> from freewheel.sharding.sources.base import StreamFeatures
        >>> rows = StreamFeatures("x", lambda: io.BytesIO(bytes(range(6))), np.dtype("u1"), (3, 2))
        >>> [batch.tolist() for batch in rows.batches(2)]
        [[[0, 1], [2, 3]], [[4, 5]]]
    """

    def __init__(
        self,
        name: str,
        open_at_rows: Callable[[], IO[bytes]],
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
    ) -> None:
        self._name, self._open, self._dtype = name, open_at_rows, dtype
        self._num_samples, self._sample_shape = shape[0], shape[1:]

    @property
    def num_samples(self) -> int:
        """Number of rows."""
        return self._num_samples

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self._sample_shape

    def batches(self, num_rows: int) -> Iterator[NDArray[Any]]:
        """Yield consecutive batches (B, *sample_shape)."""
        row_bytes = math.prod(self._sample_shape) * self._dtype.itemsize
        with self._open() as stream:
            for first in range(0, self._num_samples, num_rows):
                count = min(num_rows, self._num_samples - first)
                raw = read_exactly(stream, count * row_bytes)
                if len(raw) < count * row_bytes:
                    raise DataError(
                        f"{self._name} ends after {first + len(raw) // max(1, row_bytes)} of "
                        f"{self._num_samples} samples; it was cut short: copy it again"
                    )
                yield np.frombuffer(raw, self._dtype).reshape(count, *self._sample_shape)
            stream.read(1)  # a compressed stream checks its checksum where it ends


def read_exactly(stream: IO[bytes], num_bytes: int) -> bytes:
    """Read so many bytes, or to the end of a stream that gives less at a time.

    Example:
        >>> import io
        >>> from freewheel.sharding.sources.base import read_exactly
        >>> read_exactly(io.BytesIO(b"abc"), 2), read_exactly(io.BytesIO(b"abc"), 9)
        (b'ab', b'abc')
    """
    parts, missing = [], num_bytes
    while missing and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_all(features: Features) -> NDArray[Any]:
    """Return all rows of a source, for labels."""
    found = [np.array(batch) for batch in features.batches(1 << 20)]
    return np.concatenate(found) if found else np.empty((0, *features.sample_shape))
