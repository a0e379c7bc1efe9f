"""Open a source by what its name says it is."""

from __future__ import annotations

from pathlib import Path

from freewheel.errors import ConfigError, DataError
from freewheel.sharding.sources.arrays import open_idx, open_npy, open_npz
from freewheel.sharding.sources.base import Progress, Source, silent
from freewheel.sharding.sources.images import open_images
from freewheel.sharding.sources.parquet import open_parquet
from freewheel.sharding.sources.text import open_csv


def open_source(
    path: str | Path,
    scratch: Path,
    *,
    features: str | None = None,
    labels: str | None = None,
    image_size: int = 32,
    progress: Progress = silent,
) -> Source:
    """Open a file or folder: .npy, .npz, idx(.gz), .csv, .parquet, or a folder of images.

    Args:
        path: of the source.
        scratch: a folder for a temporary file as large as the features; the caller removes it.
        features: the array (npz) or columns (CSV, Parquet) that hold the features.
        labels: the array (npz), file (npy, idx) or column (CSV, Parquet) that holds the labels.
        image_size: pixels each way that images are scaled to.
        progress: told how far reading has come, where the whole source has to be read first.

    Raises:
        ConfigError: an option that this kind of source does not have.
        DataError: there is nothing at ``path``, or it is of no known kind, or it is broken.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from freewheel.sharding.sources import open_source
        >>> with tempfile.TemporaryDirectory() as home:
        ...     file = Path(home) / "points.csv"
        ...     _ = file.write_text("x,label\\n1.5,a\\n2.5,b\\n")
        ...     source = open_source(file, Path(home))
        ...     source.labels.tolist(), [rows.tolist() for rows in source.features.batches(2)]
        (['a', 'b'], [[[1.5], [2.5]]])
    """
    path = Path(path)
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = suffixes[-1] if suffixes else ""
    if path.is_dir():
        _refuse(path, features=features, labels=labels)
        return open_images(path, image_size, scratch, progress)
    if kind == ".csv":
        return open_csv(path, features, labels, scratch, progress)
    if kind in (".parquet", ".pq"):
        return open_parquet(path, features, labels)
    if kind == ".npz":
        return open_npz(path, features, labels)
    if kind == ".npy":
        _refuse(path, features=features)
        return open_npy(path, labels)
    if "idx" in path.name:
        _refuse(path, features=features)
        return open_idx(path, labels)
    raise DataError(
        f"{path} is of no known kind; known: .npy, .npz, .csv, .parquet, names with idx in them, "
        "and folders of images"
    )


def _refuse(path: Path, **options: str | None) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"--{name} has no meaning for {path}; leave it out")
