"""Keys of codec state, and the form in which keyed tensors go to a checkpoint."""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from freewheel.codecs.base import Key
from freewheel.errors import CheckpointError, ConfigError


def freeze(key: Key) -> Hashable:
    """Return ``key`` as something that a dict can hold: lists become tuples.

    Example:
        >>> from freewheel.codecs.keys import freeze
        >>> freeze(["a", [1, 2]])
        ('a', (1, 2))
    """
    return tuple(freeze(part) for part in key) if isinstance(key, (list, tuple)) else key


def rows_of(key: Key, num_rows: int) -> list[Hashable]:
    """Return the key of each row.

    Raises:
        ConfigError: ``key`` is no sequence of that many.
    """
    if isinstance(key, (list, tuple)) and len(key) == num_rows:
        return [freeze(part) for part in key]
    raise ConfigError(
        f'per = "sample" takes one key for each of the {num_rows} samples, got '
        f'{reprlib.repr(key)}; pass the sample numbers as a list, or set per = "tensor"'
    )


def pack_rows(rows: Iterable[tuple[Hashable, int, Tensor]]) -> list[dict[str, Any]]:
    """Gather (key, number, tensor) in order into one stacked tensor for each shape and dtype.

    Example:
        >>> import torch
        >>> from freewheel.codecs.keys import pack_rows, unpack_rows
        >>> packed = pack_rows([("a", 1, torch.zeros(2)), ("b", 1, torch.ones(2))])
        >>> packed[0]["keys"], packed[0]["values"].shape
        (['a', 'b'], torch.Size([2, 2]))
        >>> [(key, number) for key, number, _ in unpack_rows(packed)]
        [('a', 1), ('b', 1)]
    """
    groups: dict[tuple[torch.Size, torch.dtype], list[tuple[Hashable, int, Tensor]]] = {}
    for row in rows:
        groups.setdefault((row[2].shape, row[2].dtype), []).append(row)
    return [
        {
            "keys": [key for key, _, _ in group],
            "numbers": [number for _, number, _ in group],
            "values": torch.stack([value for _, _, value in group]),
        }
        for group in groups.values()
    ]


def unpack_rows(packed: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Hashable, int, Tensor]]:
    """Undo ``pack_rows``, up to the order of rows of different shapes; each tensor is a copy."""
    for group in packed:
        for key, number, value in zip(
            group["keys"], group["numbers"], group["values"].unbind(0), strict=True
        ):
            yield freeze(key), int(number), value.clone()


def part_of(state: Mapping[str, Any], name: str, codec: str) -> Any:
    """Return one part of a codec's state.

    Raises:
        CheckpointError: it is missing.
    """
    if name not in state:
        raise CheckpointError(
            f"the state of codec {codec!r} has no {name!r}, it has {sorted(state)}; the checkpoint "
            "is of a run with another codec: keep the codec settings, or start anew"
        )
    return state[name]
