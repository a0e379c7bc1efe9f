"""Several tensors at once, as a boundary or a push carries them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from freewheel.codecs.base import Codec, Encoded, Key
from freewheel.errors import WireError

#: Shape and dtype of a tensor before it was encoded.
Spec = tuple[tuple[int, ...], torch.dtype]


def encode_all(
    codec: Codec,
    tensors: Sequence[Tensor],
    keys: Sequence[Key],
    *,
    generator: torch.Generator | None = None,
) -> tuple[tuple[Tensor, ...], tuple[Spec, ...], tuple[int, ...]]:
    """Encode tensors one after the other into one flat payload.

    Args:
        codec: made by ``make_codec``, for one direction, with ``info`` unused.
        tensors: of any shapes and dtypes.
        keys: one for each.
        generator: the source of randomness.

    Returns:
        The payload tensors of all; shape and dtype of each tensor, which the other end needs once;
        and the ticket of each, for ``codec.commit(key, ticket)``.

    Raises:
        NonFiniteError: a value is NaN or infinite and the codec cannot carry it.

    Example:
        >>> import torch
        >>> from freewheel.codecs import decode_all, encode_all, make_codec
        >>> codec, mask = make_codec("cast:bf16"), torch.tensor([True, False])
        >>> payload, specs, tickets = encode_all(codec, [torch.ones(2, 2), mask], ["h", "mask"])
        >>> [part.dtype for part in payload]
        [torch.bfloat16, torch.bool]
        >>> decode_all(codec, payload, specs, ["h", "mask"])[1]
        tensor([ True, False])
    """
    encoded = [
        codec.encode(tensor, key=key, generator=generator)
        for tensor, key in zip(tensors, keys, strict=True)
    ]
    specs = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
    payload = tuple(part for one in encoded for part in one.payload)
    return payload, specs, tuple(one.ticket for one in encoded)


def decode_all(
    codec: Codec, payload: Sequence[Tensor], specs: Sequence[Spec], keys: Sequence[Key]
) -> list[Tensor]:
    """Undo ``encode_all``.

    Args:
        codec: the other end's instance of the same codec.
        payload: as it arrived.
        specs: shape and dtype of each tensor.
        keys: as given to ``encode_all``.

    Raises:
        WireError: the payload is not one of these tensors.
    """
    counts = [len(codec.layout(shape, dtype)) for shape, dtype in specs]
    if sum(counts) != len(payload):
        raise WireError(
            f"got {len(payload)} payload tensors for {len(specs)} tensors, codec {codec.name!r} "
            f"makes {sum(counts)} of them; give both ends the same codec settings"
        )
    parts = iter(payload)
    return [
        codec.decode(Encoded(tuple(next(parts) for _ in range(count))), shape, dtype, key=key)
        for count, (shape, dtype), key in zip(counts, specs, keys, strict=True)
    ]
