"""Reading idx files, the format of MNIST: a header of sizes, then the numbers, big-endian.

References:
    Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, 1998.
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from freewheel.errors import DataError

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx_shape(path: Path) -> tuple[int, ...]:
    """Return the shape in an idx file's header, without reading the numbers.

    Args:
        path: an idx file, gzipped where its name ends in ``.gz``.

    Raises:
        DataError: the file is no idx file, or is cut off within its header.
    """
    try:
        with _open(path) as file:
            return _header(file, path)[1]
    except (OSError, EOFError) as error:
        raise _unreadable(path, error) from error


def read_idx(path: Path) -> Tensor:
    """Read an idx file.

    Args:
        path: an idx file, gzipped where its name ends in ``.gz``.

    Returns:
        A tensor of the file's shape and dtype (uint8 for MNIST).

    Raises:
        DataError: the file is no idx file, is damaged, or holds fewer or more numbers than its
            header says.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from freewheel.streams.idx import read_idx
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "labels"
        ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
        ...     read_idx(path)
        tensor([7, 2, 1], dtype=torch.uint8)
    """
    try:
        with _open(path) as file:
            dtype, shape = _header(file, path)
            due = math.prod(shape) * dtype.itemsize
            body = _read_up_to(file, due)
            more = file.read(1)
    except (OSError, EOFError) as error:
        raise _unreadable(path, error) from error
    if len(body) != due or more:
        found = f"only {len(body)}" if len(body) < due else "more"
        raise DataError(
            f"{path}: its header says {shape} of {dtype.itemsize} bytes each, {due} in all, but "
            f"there are {found}; the file is damaged: fetch it again"
        )
    numbers = np.frombuffer(body, dtype=dtype)
    return torch.from_numpy(numbers.astype(dtype.newbyteorder("="), copy=False).reshape(shape))


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def _read_up_to(file: BinaryIO, num_bytes: int) -> bytearray:
    # Grows with what is really there: a damaged header may claim any size.
    body = bytearray()
    while len(body) < num_bytes and (piece := file.read(min(num_bytes - len(body), 1 << 20))):
        body += piece
    return body


def _header(file: BinaryIO, path: Path) -> tuple[np.dtype[np.generic], tuple[int, ...]]:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _DTYPES or magic[3] == 0:
        raise DataError(
            f"{path}: starts with bytes {magic.hex(' ') or '(none)'}, an idx file starts with "
            "00 00, a type (08-0e) and the number of dimensions: is it another format, or "
            "gzipped without a name that ends in .gz?"
        )
    sizes = file.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{path}: ends within its header; the file is damaged: fetch it again")
    return np.dtype(_DTYPES[magic[2]]), struct.unpack(f">{magic[3]}I", sizes)


def _unreadable(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: cannot be read ({error}); fetch it again, or check its permissions")
