"""Images: Fashion-MNIST, MNIST, pairs of MNIST digits, and the small digits of scikit-learn.

Images stay in memory as uint8 (47 MB for 60,000 of 28 x 28) and are read when first used, so a
process that needs only labels never reads them.

References:
    Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits, 1998.
    H. Xiao, K. Rasul, R. Vollgraf, Fashion-MNIST: a novel image dataset for benchmarking machine
    learning algorithms, 2017.
    E. Alpaydin, C. Kaynak, Optical recognition of handwritten digits, UCI repository, 1998.
"""

from __future__ import annotations

from pathlib import Path

import torch

from freewheel.errors import DataError
from freewheel.streams.base import DataSpec, LazyTensor, Source, SubsetSplit, TensorSplit
from freewheel.streams.finding import find_file
from freewheel.streams.idx import read_idx, read_idx_shape
from freewheel.streams.parts import carve, limited
from freewheel.streams.registry import datasets

NUM_VALIDATION = 5_000

#: Mean and standard deviation of all pixels of the 60,000 training images, scaled to 0..1.
FASHION_MNIST_SCALE = (0.2860, 0.3530)
MNIST_SCALE = (0.1307, 0.3081)

_SYSTEM = Path("/usr/share/datasets")


@datasets.register("fashion_mnist")
def fashion_mnist(limit: int | None = None, seed: int = 0) -> Source:
    """Fashion-MNIST: 28 x 28 grey images of 10 kinds of clothes.

    55,000 train, 5,000 validate (drawn from the 60,000 training images), 10,000 test. Inputs are
    float32 ``[batch, 1, 28, 28]`` of mean 0 and standard deviation 1, targets int64 ``[batch]``.

    Args:
        limit: train on so many, chosen by ``seed``.
        seed: for ``limit``.

    Raises:
        DataError: not on this machine, or damaged.

    Example:
        >>> from freewheel.streams import load
        >>> load("fashion_mnist", fallback="digits").name in ("fashion_mnist", "digits")
        True
    """
    train, test = _idx_parts("fashion-mnist", FASHION_MNIST_SCALE)
    return _in_three("fashion_mnist", train, test, limit, seed)


@datasets.register("mnist")
def mnist(limit: int | None = None, seed: int = 0) -> Source:
    """MNIST: 28 x 28 grey images of handwritten digits.

    55,000 train, 5,000 validate (drawn from the 60,000 training images), 10,000 test. Inputs are
    float32 ``[batch, 1, 28, 28]`` of mean 0 and standard deviation 1, targets int64 ``[batch]``.

    Args:
        limit: train on so many, chosen by ``seed``.
        seed: for ``limit``.

    Raises:
        DataError: not on this machine, or damaged.

    Example:
        >>> from freewheel.streams import load
        >>> load("mnist", fallback="digits").name in ("mnist", "digits")
        True
    """
    train, test = _idx_parts("mnist", MNIST_SCALE)
    return _in_three("mnist", train, test, limit, seed)


@datasets.register("digits")
def digits(limit: int | None = None, seed: int = 0) -> Source:
    """The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn.

    1,257 train, 180 validate, 360 test. Inputs are float32 ``[batch, 1, 8, 8]`` from 0 to 1,
    targets int64 ``[batch]``.

    Args:
        limit: train on so many, chosen by ``seed``.
        seed: for ``limit``.

    Example:
        >>> from freewheel.streams.images import digits
        >>> digits().spec.input_shape
        (1, 8, 8)
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images).to(torch.float32).div_(16.0).unsqueeze(1)
    whole = TensorSplit(images, torch.from_numpy(bunch.target).to(torch.int64))
    validation, test, train = (SubsetSplit(whole, part) for part in carve(len(whole), (180, 360)))
    spec = DataSpec("digits", (1, 8, 8), torch.float32, 10, "classification")
    return Source("digits", spec, limited(train, limit, seed), validation, test)


def mnist_parts() -> tuple[SubsetSplit, SubsetSplit, TensorSplit]:
    """Return MNIST's train, validation and test parts: 55,000, 5,000 and 10,000 images.

    Raises:
        DataError: not on this machine, or damaged.
    """
    whole, test = _idx_parts("mnist", MNIST_SCALE)
    validation, train = (SubsetSplit(whole, part) for part in carve(len(whole), (NUM_VALIDATION,)))
    return train, validation, test


def _idx_parts(folder: str, scale: tuple[float, float]) -> tuple[TensorSplit, TensorSplit]:
    return _idx_part(folder, "train", scale), _idx_part(folder, "t10k", scale)


def _idx_part(folder: str, part: str, scale: tuple[float, float]) -> TensorSplit:
    def locate(what: str) -> Path:
        name = f"{part}-{what}-ubyte"
        remedy = f"scripts/fetch_data.sh {folder}"
        return find_file(folder, [name, f"{name}.gz"], [_SYSTEM / folder], remedy)

    images, labels = locate("images-idx3"), locate("labels-idx1")
    shape = read_idx_shape(images)
    if shape[1:] != (28, 28):
        raise DataError(
            f"{images}: holds images of shape {shape[1:]}, not (28, 28): fetch it again"
        )
    if read_idx_shape(labels) != shape[:1]:
        raise DataError(
            f"{labels}: holds {read_idx_shape(labels)} labels for {shape[0]} images in {images}; "
            "the two files do not belong together: fetch both again"
        )
    return TensorSplit(
        LazyTensor(shape[0], lambda: read_idx(images).unsqueeze(1)),
        LazyTensor(shape[0], lambda: read_idx(labels).to(torch.int64)),
        *scale,
    )


def _in_three(
    name: str, whole: TensorSplit, test: TensorSplit, limit: int | None, seed: int
) -> Source:
    validation, train = (SubsetSplit(whole, part) for part in carve(len(whole), (NUM_VALIDATION,)))
    spec = DataSpec(name, (1, 28, 28), torch.float32, 10, "classification")
    return Source(name, spec, limited(train, limit, seed), validation, test)
