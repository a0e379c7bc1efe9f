"""Each worker's samples in files of their own, for workers that cannot see the whole source."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from freewheel.errors import DataError
from freewheel.sharding.samples import Indices, Samples


def write_data(folder: Path, samples: Samples, shards: Sequence[Indices]) -> list[list[str]]:
    """Write ``data-RANK-features.npy`` and ``data-RANK-labels.npy`` for every worker, in one pass.

    Rows stand in the order of the worker's indices.

    Args:
        folder: where to write.
        samples: what was divided.
        shards: for each worker the indices of its samples, ascending.

    Returns:
        For each worker the names of its files.

    Raises:
        DataError: a feature is not finite.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from freewheel.sharding.materialise import write_data
        >>> from freewheel.sharding.samples import collect
        >>> samples = collect([[1.0], [2.0], [3.0]], [0, 1, 0])
        >>> with tempfile.TemporaryDirectory() as home:
        ...     files = write_data(Path(home), samples, [np.array([0, 2]), np.array([1])])
        ...     np.load(Path(home) / files[0][0]).tolist()
        [[1.0], [3.0]]
    """
    names: list[list[str]] = [[] for _ in shards]
    if samples.features is not None:
        _write_features(folder, samples, shards, names)
    if samples.labels is not None:
        for rank, shard in enumerate(shards):
            file = folder / f"data-{rank:05d}-labels.npy"
            np.save(file, samples.labels[shard], allow_pickle=False)
            names[rank].append(file.name)
    return names


def _write_features(
    folder: Path, samples: Samples, shards: Sequence[Indices], names: list[list[str]]
) -> None:
    features = samples.features
    if features is None:
        raise DataError("there are no features to write")
    first_row = next(iter(features.batches(1)))
    dtype = np.dtype(first_row.dtype).newbyteorder("=")
    with ExitStack() as open_files:
        files = []
        for rank, shard in enumerate(shards):
            file = folder / f"data-{rank:05d}-features.npy"
            stream = open_files.enter_context(file.open("wb"))
            np.lib.format.write_array_header_1_0(
                stream,
                {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": (len(shard), *features.sample_shape),
                },
            )
            files.append(stream)
            names[rank].append(file.name)
        first = 0
        for batch in features.batches(samples.batch_rows):
            for stream, shard in zip(files, shards, strict=True):
                low, high = np.searchsorted(shard, [first, first + len(batch)])
                rows = np.ascontiguousarray(batch[shard[low:high] - first], dtype=dtype)
                stream.write(rows.tobytes())
            first += len(batch)
