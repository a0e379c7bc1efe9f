"""Text as bytes, for language models: blocks of a fixed length, each byte's target the next one."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from freewheel.errors import ConfigError, DataError
from freewheel.streams.base import DataSpec, Source
from freewheel.streams.finding import MissingDataError, find_file
from freewheel.streams.parts import limited
from freewheel.streams.registry import datasets

#: The text is cut into so many stretches; of every 20, the 10th validates and the 20th tests.
NUM_STRETCHES = 100

_EVERYTHING = "Gen1:1-Rev22:21"


class BlockSplit:
    """Stretches of text cut into blocks of ``context`` bytes; targets are shifted by one byte.

    Blocks of a stretch do not overlap, and the last bytes of a stretch that fill no block are left
    out.

    Args:
        text: uint8 ``[num_bytes]``.
        stretches: ``(start, stop)`` of each stretch in the text.
        context: bytes in a block, at least 1.

    Example:
        >>> import torch
        >>> from freewheel.streams.text import BlockSplit
        >>> split = BlockSplit(torch.tensor(list(b"abcdefg"), dtype=torch.uint8), [(0, 7)], 3)
        >>> len(split), bytes(split.inputs(torch.tensor([1]))[0].tolist())
        (2, b'def')
        >>> bytes(split.targets(torch.tensor([1]))[0].tolist())
        b'efg'
    """

    repeatable = True

    def __init__(self, text: Tensor, stretches: list[tuple[int, int]], context: int) -> None:
        self._text = text
        self._starts = torch.cat(
            [torch.arange(start, stop - context, context) for start, stop in stretches]
        )
        self._offsets = torch.arange(context)

    def __len__(self) -> int:
        return len(self._starts)

    def inputs(self, indices: Tensor) -> Tensor:
        """Return the blocks, int64 ``[batch, context]``."""
        return self._block(indices, 0)

    def targets(self, indices: Tensor) -> Tensor:
        """Return the bytes after each byte of the blocks, int64 ``[batch, context]``."""
        return self._block(indices, 1)

    def _block(self, indices: Tensor, shift: int) -> Tensor:
        places = self._starts[indices].unsqueeze(1) + self._offsets + shift
        return self._text[places].to(torch.int64)


@datasets.register("bible")
def bible(limit: int | None = None, seed: int = 0, context: int = 128) -> Source:
    """The King James Bible, 4.4 MB of bytes, one verse a line with its reference.

    Inputs and targets are int64 ``[batch, context]`` from 0 to 255. The text is cut into 100
    stretches of 44 KB; of every 20 the 10th validates and the 20th tests, so that all three parts
    hold every kind of book: 90%, 5% and 5%. Cross-entropy in bits is bits per byte.

    Args:
        limit: train on so many blocks, chosen by ``seed``.
        seed: for ``limit``.
        context: bytes in a block, from 1 to 4096.

    Raises:
        ConfigError: ``context`` or ``limit`` out of range.
        DataError: the text is not on this machine, or is too short.

    Example:
        >>> from freewheel.streams import load
        >>> load("bible", fallback="digits").name in ("bible", "digits")
        True
    """
    if not 1 <= context <= 4096:
        raise ConfigError(f"context must be from 1 to 4096 bytes, got {context}")
    raw = _bible_text()
    if len(raw) < NUM_STRETCHES * (context + 1):
        raise DataError(
            f"the text of 'bible' has {len(raw)} bytes, at least {NUM_STRETCHES * (context + 1)} "
            f"are needed for context {context}; fetch it again: scripts/fetch_data.sh bible"
        )
    text = torch.from_numpy(np.frombuffer(raw, dtype=np.uint8).copy())
    edges = [len(raw) * i // NUM_STRETCHES for i in range(NUM_STRETCHES + 1)]
    stretches = list(itertools.pairwise(edges))
    validation = [stretches[i] for i in range(9, NUM_STRETCHES, 20)]
    test = [stretches[i] for i in range(19, NUM_STRETCHES, 20)]
    train = [stretch for i, stretch in enumerate(stretches) if i % 20 not in (9, 19)]
    return Source(
        name="bible",
        spec=DataSpec("bible", (context,), torch.int64, 256, "language", (context,)),
        train=limited(BlockSplit(text, train, context), limit, seed),
        validation=BlockSplit(text, validation, context),
        test=BlockSplit(text, test, context),
    )


def _bible_text() -> bytes:
    try:
        return find_file("bible", ["bible.txt"], [], "scripts/fetch_data.sh bible").read_bytes()
    except MissingDataError as missing:
        program = shutil.which("bible")
        if program is None:
            raise MissingDataError(f"{missing}; nor is there a program 'bible'") from None
    return _ask(Path(program))


def _ask(program: Path) -> bytes:
    command = [str(program), "-f", _EVERYTHING]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise DataError(
            f"the program {program} did not print the text of 'bible' ({error}); it must be the "
            "one of Debian's bible-kjv: scripts/fetch_data.sh bible writes the text to a file"
        ) from error
    return done.stdout
