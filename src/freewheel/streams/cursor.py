"""Where a run stands in its epochs, as one value for all workers together.

A cursor does not say what each worker did, but which samples of each unfinished epoch nobody has
taken yet. That is what lets a run stop with two workers and go on with three.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from freewheel.errors import CheckpointError

Positions = npt.NDArray[np.int64]

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An epoch that has begun and not ended.

    Args:
        epoch: its number, from 0.
        pending: positions in the epoch's order that no worker has taken, ascending.
        rounds_done: rounds of it that have been finished by all, for the step number.
    """

    epoch: int
    pending: Positions
    rounds_done: int


@dataclass(frozen=True, slots=True)
class Cursor:
    """The unfinished epochs, oldest first, and the first epoch that nobody has begun.

    Example:
        >>> import numpy as np
        >>> from freewheel.streams.cursor import Cursor, Unfinished
        >>> cursor = Cursor((Unfinished(0, np.array([3, 4]), 1),), next_epoch=1)
        >>> state = cursor.state_dict({"num_samples": 5})
        >>> Cursor.from_state(state, {"num_samples": 5}).unfinished[0].pending.tolist()
        [3, 4]
    """

    unfinished: tuple[Unfinished, ...]
    next_epoch: int

    def state_dict(self, identity: Mapping[str, Any]) -> dict[str, Any]:
        """Return plain numbers and strings, ready for JSON or msgpack.

        Args:
            identity: what must be the same for the cursor to make sense, ``num_samples`` included.
        """
        num_samples = int(identity["num_samples"])
        return {
            "format": _FORMAT,
            **identity,
            "next_epoch": self.next_epoch,
            "unfinished": [
                {
                    "epoch": part.epoch,
                    "num_pending": len(part.pending),
                    "pending": _pack(part.pending, num_samples),
                    "rounds_done": part.rounds_done,
                }
                for part in self.unfinished
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], identity: Mapping[str, Any]) -> Cursor:
        """Read a cursor back.

        Args:
            state: what ``state_dict`` gave.
            identity: of the sampler that is to go on from there.

        Raises:
            CheckpointError: the state is malformed, or is that of other data or another order.
        """
        if state.get("format") != _FORMAT:
            raise CheckpointError(
                f"the data cursor has format {state.get('format')!r}, this version reads "
                f"{_FORMAT}: resume with the version of freewheel that wrote it"
            )
        for key, now in identity.items():
            if state.get(key) != now:
                raise CheckpointError(
                    f"the data cursor was saved with {key} = {state.get(key)!r}, now it is "
                    f"{now!r}: samples would be skipped or repeated; resume with the data and "
                    "settings of the checkpoint, or start a new run"
                )
        num_samples = int(identity["num_samples"])
        try:
            unfinished = tuple(
                Unfinished(
                    int(part["epoch"]),
                    _unpack(part["pending"], num_samples),
                    int(part["rounds_done"]),
                )
                for part in state["unfinished"]
            )
            next_epoch = int(state["next_epoch"])
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise CheckpointError(f"the data cursor is malformed ({error!r})") from error
        for part, saved in zip(unfinished, state["unfinished"], strict=True):
            if len(part.pending) != saved["num_pending"]:
                raise CheckpointError(
                    f"the data cursor lists {len(part.pending)} samples of epoch {part.epoch} as "
                    f"pending but counts {saved['num_pending']}: the checkpoint is damaged"
                )
        return cls(unfinished, next_epoch)


def fingerprint(samples: Positions) -> str:
    """Return 8 hexadecimal digits that tell one list of sample numbers from another.

    Example:
        >>> import numpy as np
        >>> from freewheel.streams.cursor import fingerprint
        >>> fingerprint(np.arange(3)) == fingerprint(np.array([0, 1, 3]))
        False
    """
    return f"{zlib.crc32(np.ascontiguousarray(samples, dtype='<i8').tobytes()):08x}"


def epoch_order(num_samples: int, seed: int, epoch: int, shuffle: bool) -> Positions:
    """Return the order of an epoch: the same for the same seed and epoch, on every worker.

    Example:
        >>> from freewheel.streams.cursor import epoch_order
        >>> sorted(epoch_order(5, seed=3, epoch=1, shuffle=True).tolist())
        [0, 1, 2, 3, 4]
    """
    if not shuffle:
        return np.arange(num_samples)
    return np.random.default_rng([seed, epoch]).permutation(num_samples)


def without(num_samples: int, pending: Positions, taken: Sequence[Positions]) -> Positions:
    """Return the pending positions that are in none of ``taken``, ascending."""
    mask = np.zeros(num_samples, dtype=bool)
    mask[pending] = True
    for positions in taken:
        mask[positions] = False
    return np.flatnonzero(mask)


def _pack(positions: Positions, num_samples: int) -> str:
    # A bitmap: a few dozen bytes while workers keep in step, at most a sixth of a byte a sample.
    mask = np.zeros(num_samples, dtype=bool)
    mask[positions] = True
    return base64.b64encode(zlib.compress(np.packbits(mask).tobytes())).decode("ascii")


def _unpack(text: str, num_samples: int) -> Positions:
    limit = -(-num_samples // 8)
    packed = zlib.decompressobj().decompress(base64.b64decode(text), limit + 1)
    if len(packed) != limit:
        raise ValueError(f"a bitmap of {limit} bytes was due, got {len(packed)}")
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=num_samples)
    return np.flatnonzero(bits)
