"""Folders of images, one folder per class, by Pillow (the extra ``freewheel[images]``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freewheel.errors import ConfigError, DataError
from freewheel.sharding.sources.base import Progress, Source, silent
from freewheel.sharding.sources.scratch import Scratch

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm"})


def image_files(path: Path) -> list[Path]:
    """Return the images in a folder and its folders, in the order in which they are numbered.

    Hidden files, and files that are no images by their suffix, are passed over.
    """
    files = [file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES]
    visible = [
        file
        for file in files
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    return sorted(visible, key=lambda file: file.relative_to(path).as_posix())


def open_images(path: Path, image_size: int, scratch: Path, progress: Progress = silent) -> Source:
    """Read all images once, scaled down; the label of an image is the folder it is in.

    Args:
        path: a folder of folders of images, or of images without labels.
        image_size: every image is scaled to this many pixels each way, red, green and blue.
        scratch: folder for the scratch file.
        progress: told of every image.

    Raises:
        ConfigError: Pillow is not installed, or ``image_size`` < 1.
        DataError: there is no image, or one cannot be read; it is named.
    """
    if image_size < 1:
        raise ConfigError(f"image size must be >= 1, got {image_size}")
    files = image_files(path)
    if not files:
        raise DataError(
            f"{path} holds no image ({', '.join(sorted(SUFFIXES))}): there is no sample to assign"
        )
    shape = (3, image_size, image_size)
    with Scratch(scratch / "rows", np.dtype(np.uint8), shape) as kept:
        for number, file in enumerate(files, start=1):
            kept.append(_pixels(file, image_size)[None])
            progress(number, len(files))
    folders = [file.relative_to(path).parent.as_posix() for file in files]
    labels = None if set(folders) == {"."} else np.array(folders)
    return Source(path, "images", kept.features(), labels)


def _pixels(file: Path, size: int) -> NDArray[Any]:
    try:
        from PIL import Image
    except ImportError as error:
        raise ConfigError("reading images needs Pillow: pip install 'freewheel[images]'") from error
    try:
        with Image.open(file) as image:
            scaled = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"{file} cannot be read as an image: {error}; mend or remove it") from error
    return np.asarray(scaled).transpose(2, 0, 1)
