"""NumPy files, .npy and .npz, and idx files, compressed or not: read from first to last row."""

from __future__ import annotations

import ast
import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import DataError, nearest
from freewheel.sharding.samples import ArrayFeatures, Features
from freewheel.sharding.sources.base import Source, StreamFeatures, read_all, read_exactly

_FEATURE_NAMES = ("features", "x", "X", "x_train", "X_train", "data", "images", "arr_0")
_LABEL_NAMES = ("labels", "y", "Y", "y_train", "target", "targets", "label", "arr_1")
_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def open_npy(path: Path, labels: str | None) -> Source:
    """Open a .npy file of features; ``labels`` names a second .npy file.

    Raises:
        DataError: a file is not what its name says, or holds Python objects.
    """
    marks = None if labels is None else read_all(_npy_features(Path(labels)))
    where = None if labels is None else Path(labels)
    return Source(path, "npy", _npy_features(path), marks, labels_path=where)


def open_npz(path: Path, features: str | None, labels: str | None) -> Source:
    """Open a .npz archive; compressed ones are read as a stream too, never whole.

    Args:
        path: of the archive.
        features: name of the array of features; by default one of the usual names.
        labels: name of the array of labels; by default one of the usual names, if there is one.

    Raises:
        DataError: the archive is broken, or has no such array.
    """
    with _readable(path), zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
    chosen = _choose(path, names, features, _FEATURE_NAMES, "features", len(names) == 1)
    label_name = _choose(path, names, labels, _LABEL_NAMES, "labels", False)
    rows = None if chosen is None else _member(path, chosen)
    marks = None if label_name is None else read_all(_member(path, label_name))
    if rows is None and marks is None:
        raise DataError(f"{path} has arrays {names}; say which with --features and --labels")
    return Source(path, "npz", rows, marks)


def open_idx(path: Path, labels: str | None) -> Source:
    """Open an idx file of features; its labels are ``labels``, or the neighbour named alike.

    ``train-images-idx3-ubyte.gz`` has its labels in ``train-labels-idx1-ubyte.gz``.

    Raises:
        DataError: a file is not in idx form.
    """
    neighbour = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    if labels is None and neighbour != path and neighbour.exists():
        labels = str(neighbour)
    marks = None if labels is None else read_all(_idx_features(Path(labels)))
    where = None if labels is None else Path(labels)
    return Source(path, "idx", _idx_features(path), marks, labels_path=where)


def _choose(
    path: Path,
    names: list[str],
    asked: str | None,
    usual: tuple[str, ...],
    what: str,
    only: bool,
) -> str | None:
    if asked is not None:
        if asked not in names:
            raise DataError(f"{path} has no array {asked!r} for {what}{nearest(asked, names)}")
        return asked
    return next((name for name in usual if name in names), names[0] if only else None)


def _npy_features(path: Path) -> Features:
    with _readable(path), path.open("rb") as stream:
        dtype, shape, fortran = _npy_header(stream, path)
        start = stream.tell()
    if fortran and len(shape) > 1:  # rows are not consecutive: let the system page them in
        return ArrayFeatures(np.load(path, mmap_mode="r", allow_pickle=False))

    def open_at_rows() -> IO[bytes]:
        stream = path.open("rb")
        stream.seek(start)
        return stream

    return Checked(StreamFeatures(str(path), open_at_rows, dtype, shape), path)


def _member(path: Path, name: str) -> Features:
    entry = f"{name}.npy"

    def open_entry() -> IO[bytes]:
        with zipfile.ZipFile(path) as archive:  # an open entry keeps the file open by itself
            return archive.open(entry)

    with _readable(path), open_entry() as stream:
        dtype, shape, fortran = _npy_header(stream, Path(f"{path}:{name}"))
        start = stream.tell()
    if fortran and len(shape) > 1:
        with np.load(path, allow_pickle=False) as archive:
            return ArrayFeatures(archive[name])

    def open_at_rows() -> IO[bytes]:
        stream = open_entry()
        read_exactly(stream, start)
        return stream

    return Checked(StreamFeatures(f"{path}:{name}", open_at_rows, dtype, shape), path)


def _npy_header(stream: IO[bytes], path: Path) -> tuple[np.dtype[Any], tuple[int, ...], bool]:
    if read_exactly(stream, 6) != b"\x93NUMPY":
        raise DataError(f"{path} is no NumPy file: it does not begin with NUMPY")
    major = read_exactly(stream, 2)[0]
    length = int.from_bytes(read_exactly(stream, 2 if major == 1 else 4), "little")
    try:
        header = ast.literal_eval(read_exactly(stream, length).decode("utf-8"))
        dtype = np.dtype(header["descr"])
        shape = tuple(int(size) for size in header["shape"])
        fortran = bool(header["fortran_order"])
    except (ValueError, SyntaxError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} has a broken NumPy header: {error}") from error
    if dtype.hasobject:
        raise DataError(
            f"{path} holds Python objects, which could run code when read; save it as numbers"
        )
    if not shape:
        raise DataError(f"{path} holds a single number; an array with a row per sample is needed")
    return dtype, shape, fortran


def _idx_features(path: Path) -> Features:
    def open_file() -> IO[bytes]:
        if path.suffix == ".gz":
            return cast(IO[bytes], gzip.open(path, "rb"))
        return path.open("rb")

    with _readable(path), open_file() as stream:
        magic = read_exactly(stream, 4)
        if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _IDX_TYPES or not magic[3]:
            raise DataError(f"{path} is no idx file: it begins with {magic.hex()!r}")
        sizes = read_exactly(stream, 4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{path} ends within its header; it was cut short: copy it again")
    dtype = np.dtype(_IDX_TYPES[magic[2]])
    shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))

    def open_at_rows() -> IO[bytes]:
        stream = open_file()
        read_exactly(stream, 4 + len(sizes))
        return stream

    return Checked(StreamFeatures(str(path), open_at_rows, dtype, shape), path)


class Checked:
    """Features of a file whose damage may be found only while it is read.

    Args:
        features: to be read.
        path: to be named.
    """

    def __init__(self, features: Features, path: Path) -> None:
        self._features, self._path = features, path

    @property
    def num_samples(self) -> int:
        """Number of rows."""
        return self._features.num_samples

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return self._features.sample_shape

    def batches(self, num_rows: int) -> Iterator[NDArray[Any]]:
        """Yield consecutive batches; name the file if it is damaged."""
        with _readable(self._path):
            yield from self._features.batches(num_rows)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
