"""What every codec keeps: a tensor in, plain tensors for the wire out, and back.

A codec is a value (a name and settings). Both ends of one direction of one boundary, or of one
push or pull stream, make their own instance of the same one; only what ``encode`` returns crosses.
"""

from __future__ import annotations

import math
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from freewheel.errors import NonFiniteError, WireError
from freewheel.registry import Registry

codecs: Registry[Codec] = Registry(kind="codec", group="freewheel.codecs")

#: Names one tensor of a stream (``"weight"``, ``"0/1"``), or, as a sequence, each of its samples.
Key = Hashable | Sequence[Hashable]

#: Shape and dtype of each tensor of a payload.
Layout = tuple[tuple[tuple[int, ...], torch.dtype], ...]


@dataclass(frozen=True, slots=True)
class Encoded:
    """One tensor as it crosses the wire.

    Args:
        payload: tensors to be sent raw, contiguous, in this order.
        info: anything else that ``decode`` needs, msgpack-able and small; ours leave it empty.
        ticket: names this call of ``encode`` in ``commit`` and ``rollback``; stays at the sender.

    Example:
        >>> import torch
        >>> from freewheel.codecs import Encoded
        >>> Encoded((torch.zeros(5, dtype=torch.uint8), torch.zeros(2))).num_bytes
        13
    """

    payload: tuple[Tensor, ...]
    info: tuple[Any, ...] = ()
    ticket: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the payload."""
        return sum(part.numel() * part.element_size() for part in self.payload)


class Codec(ABC):
    """How a tensor looks on the wire.

    Integers, booleans, complex and empty tensors pass untouched through every codec.

    State, where there is any, is explicit. ``encode`` only stages it: it becomes the base of later
    calls by ``commit``, when the other end has acknowledged, and is dropped by ``rollback``, when
    the message is known to be lost or refused. Both name the call by ``key`` and ``ticket``; with
    no ticket they mean every open call of that key. Tickets that are closed or unknown are ignored,
    so that a repeated acknowledgement does no harm.

    Attributes:
        name: what it is registered under.
        unbiased: the mean of ``decode(encode(x))`` over the generator's draws is ``x``.
        stateful: it has a state that belongs in a checkpoint.
        exact: ``num_bytes`` is exact; else it is an upper bound.
    """

    name: str = ""
    unbiased: bool = False
    stateful: bool = False
    exact: bool = True

    @abstractmethod
    def encode(
        self, tensor: Tensor, *, key: Key = "", generator: torch.Generator | None = None
    ) -> Encoded:
        """Return what to send for ``tensor``.

        Args:
            tensor: any shape, dtype, device and strides; not modified. The payload may share its
                memory, so do not write to it before the payload is sent.
            key: which tensor of the stream it is, for codecs with a state.
            generator: the only source of randomness, for codecs that round at random.

        Raises:
            NonFiniteError: a value is NaN or infinite and the codec cannot carry it.
            ConfigError: randomness is needed and ``generator`` is None.
        """

    @abstractmethod
    def decode(
        self, encoded: Encoded, shape: Sequence[int], dtype: torch.dtype, *, key: Key = ""
    ) -> Tensor:
        """Return the tensor that was sent, of this shape and dtype, on the payload's device.

        Args:
            encoded: payload and info as they arrived.
            shape: of the tensor given to ``encode``.
            dtype: of the tensor given to ``encode``.
            key: as given to ``encode``.

        Raises:
            WireError: the payload is none that ``encode`` makes for this shape and dtype.
        """

    @abstractmethod
    def layout(self, shape: Sequence[int], dtype: torch.dtype) -> Layout:
        """Return shape and dtype of each payload tensor for a tensor of this shape and dtype.

        Where ``exact`` is False the parts may be shorter.
        """

    def num_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Return the payload's bytes for a tensor of this shape and dtype.

        Exact where ``exact`` is True, else an upper bound.
        """
        return layout_bytes(self.layout(shape, dtype))

    def round_trip(
        self, tensor: Tensor, *, key: Key = "", generator: torch.Generator | None = None
    ) -> tuple[Encoded, Tensor]:
        """Return what to send and the tensor that the other end will make of it.

        Codecs whose decoding needs a state, or that wrap another, have their own version, since
        a sender holds no receiver's state.
        """
        encoded = self.encode(tensor, key=key, generator=generator)
        return encoded, self.decode(encoded, tensor.shape, tensor.dtype, key=key)

    def commit(self, key: Key = "", ticket: int | None = None) -> None:  # noqa: B027 - most have no state
        """Make what was staged the base: the other end has acknowledged it."""

    def rollback(self, key: Key = "", ticket: int | None = None) -> None:  # noqa: B027 - most keep no state
        """Drop what was staged: the other end will never have it."""

    def reset(self) -> None:  # noqa: B027 - most keep no state
        """Forget all state, after the process at the other end was replaced."""

    def state_dict(self) -> dict[str, Any]:
        """Return committed state: tensors and plain values in dicts and lists."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # noqa: B027 - most keep no state
        """Take over what ``state_dict`` returned; anything staged is dropped."""


class FloatCodec(Codec):
    """Base of codecs that change floats only; what cannot shrink passes untouched.

    A subclass writes ``_encode``, ``_decode`` and ``_layout`` and never sees an integer, an empty
    tensor, or a shape for which its payload would be no smaller than the tensor itself.

    Example:
        >>> import torch
        >>> from freewheel.codecs import make_codec
        >>> codec = make_codec("cast:bf16")
        >>> codec.num_bytes((4, 4), torch.float32), codec.num_bytes((4, 4), torch.bfloat16)
        (32, 32)
        >>> codec.encode(torch.arange(3)).payload[0]
        tensor([0, 1, 2])
    """

    def passes(self, shape: Sequence[int], dtype: torch.dtype) -> bool:
        """Return whether a tensor of this shape and dtype is sent as it is."""
        if not dtype.is_floating_point or math.prod(shape) == 0:
            return True
        whole = math.prod(shape) * dtype.itemsize
        return self.exact and layout_bytes(self._layout(tuple(shape), dtype)) >= whole

    def encode(
        self, tensor: Tensor, *, key: Key = "", generator: torch.Generator | None = None
    ) -> Encoded:
        """Return what to send for ``tensor``; see ``Codec.encode``."""
        if self.passes(tensor.shape, tensor.dtype):
            return Encoded((plain(tensor),))
        return self._encode(tensor.detach(), key, generator)

    def decode(
        self, encoded: Encoded, shape: Sequence[int], dtype: torch.dtype, *, key: Key = ""
    ) -> Tensor:
        """Return the tensor that was sent; see ``Codec.decode``."""
        passes = self.passes(shape, dtype)
        check_payload(self.name, encoded, self.layout(shape, dtype), self.exact or passes)
        if passes:
            return encoded.payload[0]
        return self._decode(encoded, tuple(shape), dtype, key)

    def layout(self, shape: Sequence[int], dtype: torch.dtype) -> Layout:
        """Return shape and dtype of each payload tensor; see ``Codec.layout``."""
        if self.passes(shape, dtype):
            return ((tuple(shape), dtype),)
        return self._layout(tuple(shape), dtype)

    @abstractmethod
    def _encode(self, tensor: Tensor, key: Key, generator: torch.Generator | None) -> Encoded: ...

    @abstractmethod
    def _decode(
        self, encoded: Encoded, shape: tuple[int, ...], dtype: torch.dtype, key: Key
    ) -> Tensor: ...

    @abstractmethod
    def _layout(self, shape: tuple[int, ...], dtype: torch.dtype) -> Layout: ...


def layout_bytes(layout: Layout) -> int:
    """Return the bytes of a payload of this layout.

    Example:
        >>> import torch
        >>> from freewheel.codecs.base import layout_bytes
        >>> layout_bytes((((3, 5), torch.uint8), ((3,), torch.float16)))
        21
    """
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout)


def check_payload(name: str, encoded: Encoded, expected: Layout, exact: bool = True) -> None:
    """Refuse a payload whose parts are not as expected.

    Args:
        name: the codec's, for the message.
        encoded: as it arrived.
        expected: what ``layout`` says.
        exact: False where a part may have fewer values than that.

    Raises:
        WireError: their number, a shape, or a dtype differs.
    """
    found = tuple((tuple(part.shape), part.dtype) for part in encoded.payload)
    fits = found == expected or (
        not exact
        and [dtype for _, dtype in found] == [dtype for _, dtype in expected]
        and all(
            math.prod(few) <= math.prod(many)
            for (few, _), (many, _) in zip(found, expected, strict=True)
        )
    )
    if not fits:
        raise WireError(
            f"codec {name!r} got a payload of {found}; for a tensor of this shape and dtype it is "
            f"{expected}; give both ends the same codec settings"
        )


def plain(tensor: Tensor) -> Tensor:
    """Return ``tensor`` detached, contiguous and free of lazy conjugation."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def work_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that a codec computes in: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def largest_magnitude(tensor: Tensor, codec: str, key: Key) -> float:
    """Return the largest absolute value of a tensor that has to be finite.

    Raises:
        NonFiniteError: a value is NaN or infinite.
    """
    wide = tensor.to(work_dtype(tensor.dtype))
    biggest = float(torch.maximum(-wide.amin(), wide.amax()))
    require_finite(biggest, tensor, codec, key)
    return biggest


def require_finite(biggest: float, tensor: Tensor, codec: str, key: Key) -> None:
    """Refuse a tensor whose largest absolute value is NaN or infinite.

    Raises:
        NonFiniteError: it is; the message counts such values.
    """
    if math.isfinite(biggest):
        return
    bad = tensor.numel() - int(torch.isfinite(tensor.to(work_dtype(tensor.dtype))).sum())
    where = f" (key {reprlib.repr(key)})" if key != "" else ""
    raise NonFiniteError(
        f"codec {codec!r} got {bad} of {tensor.numel()} values that are NaN or infinite{where}; "
        "it carries finite values only; look for an overflow or too high a learning rate before "
        "this tensor, or use codec cast, which passes them"
    )
