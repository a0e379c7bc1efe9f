"""Differences to the last value that both ends hold."""

from __future__ import annotations

import reprlib
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from freewheel.codecs.base import (
    Encoded,
    Key,
    Layout,
    codecs,
    largest_magnitude,
    work_dtype,
)
from freewheel.codecs.keys import freeze, pack_rows, part_of, rows_of, unpack_rows
from freewheel.codecs.parse import CodecSpec
from freewheel.codecs.rounding import within
from freewheel.codecs.wrapper import MAX_OPEN, WrapperCodec
from freewheel.errors import ConfigError, WireError, nearest

_PER = ("tensor", "sample")
_STORES = ("full", "bf16")

#: Versions of a value count 1 .. 255 and begin again; 0 stands for "no value: zeros".
_NUM_VERSIONS = 255


@dataclass(slots=True)
class _Sent:
    """What the sending end knows of one key."""

    issued: int = 0
    base_version: int = 0
    base: Tensor | None = None
    staged: dict[int, tuple[int, Tensor]] = field(default_factory=dict)


@codecs.register("delta")
class Delta(WrapperCodec):
    """Encode x - m, where m is the last value under the same key that both ends hold.

    Both ends then hold m' = m + C(x - m). Where a tensor returns little changed (parameters that
    are pulled again, activations of the same samples an epoch later) the difference is small and
    few bits go far. On a single pass over a stream no key returns, and it is useless.

    **Loss, duplication, rollback.** The sender alone decides what m is: ``commit`` makes a staged
    value the base, and each message names the versions of its base and of its new value. The
    receiver keeps the base last named and all later values, so it is right whatever was lost or
    came twice; nothing but a lost process makes the ends differ, and that is noticed
    (``WireError``: call ``reset`` at the sending end). At the receiving end ``commit(key)`` may be
    called once the sender is known to have committed; it frees the older values, and is never
    necessary. ``rollback`` there does nothing.

    A key not yet held, or held with another shape, counts as zeros.

    Memory: at each end one value a key (at the receiver two, until the next message or a commit).
    With ``per = "sample"`` that is the whole data set's activations.

    Bytes: those of ``inner`` for float32 (float64), plus 2, or 2 a sample with ``per = "sample"``.

    Non-finite values are refused.

    Args:
        inner: the codec C.
        per: ``"tensor"`` (a key names a tensor) or ``"sample"`` (a key is a sequence that names
            each index of the first dimension, in any company and order).
        store: hold values as ``"full"`` (float32 or float64) or ``"bf16"`` (half the memory).

    Raises:
        ConfigError: a setting is unknown.

    Example:
        >>> import torch
        >>> from freewheel.codecs import make_codec
        >>> sender, receiver = make_codec("delta+quantise:8,rounding=nearest"), make_codec(
        ...     "delta+quantise:8,rounding=nearest")
        >>> x = torch.linspace(-1, 1, 100)
        >>> for _ in range(2):
        ...     encoded = sender.encode(x, key="w")
        ...     y = receiver.decode(encoded, x.shape, x.dtype, key="w")
        ...     sender.commit("w", encoded.ticket)
        ...     print(f"{float((y - x).abs().max()):.0e}")
        4e-03
        2e-05

    References:
        Wang et al., "Fine-tuning language models over slow networks using activation quantization
        with guarantees" (AQ-SGD), 2022.
    """

    name = "delta"

    def __init__(
        self, inner: CodecSpec = "quantise", per: str = "tensor", store: str = "full"
    ) -> None:
        super().__init__(inner)
        if per not in _PER:
            raise ConfigError(f"per is unknown: {per!r}{nearest(str(per), _PER)}")
        if store not in _STORES:
            raise ConfigError(f"store is unknown: {store!r}{nearest(str(store), _STORES)}")
        self.per = per
        self.store = store
        self.stateful = True
        self.unbiased = self.inner.unbiased
        self._sent: dict[Hashable, _Sent] = {}
        self._held: dict[Hashable, dict[int, Tensor]] = {}

    # ------------------------------------------------------------------ state

    def commit(self, key: Key = "", ticket: int | None = None) -> None:
        """Make a staged value the base; at the receiving end, free all but the newest value."""
        super().commit(key, ticket)
        for row in self._keys(key):
            entry = self._sent.get(row)
            if entry is not None and entry.staged:
                known = max(entry.staged) if ticket is None else ticket
                if known in entry.staged:
                    entry.base_version, entry.base = entry.staged[known]
                    entry.staged = {t: v for t, v in entry.staged.items() if t > known}
            held = self._held.get(row)
            if held and ticket is None:
                newest = next(reversed(held))
                self._held[row] = {newest: held[newest]}

    def rollback(self, key: Key = "", ticket: int | None = None) -> None:
        """Drop staged values at the sending end."""
        super().rollback(key, ticket)
        for row in self._keys(key):
            entry = self._sent.get(row)
            if entry is not None:
                entry.staged = {t: v for t, v in entry.staged.items() if t != (ticket or t)}

    def reset(self) -> None:
        """Forget all values: the next tensor of each key is encoded against zeros."""
        super().reset()
        self._sent.clear()
        self._held.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the bases of the sending end and the values of the receiving end."""
        sent = [
            (key, entry.base_version, entry.base)
            for key, entry in self._sent.items()
            if entry.base is not None
        ]
        held = [
            (key, v, value) for key, values in self._held.items() for v, value in values.items()
        ]
        issued = [{"key": key, "issued": entry.issued} for key, entry in self._sent.items()]
        return {
            **super().state_dict(),
            "sent": pack_rows(sent),
            "held": pack_rows(held),
            "issued": issued,
            "last_ticket": self._last_ticket,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over bases and values."""
        super().load_state_dict(state)
        self._last_ticket = part_of(state, "last_ticket", self.name)
        issued = part_of(state, "issued", self.name)
        self._sent = {freeze(entry["key"]): _Sent(issued=entry["issued"]) for entry in issued}
        for key, version, value in unpack_rows(part_of(state, "sent", self.name)):
            self._sent[key].base_version, self._sent[key].base = version, value
        self._held = {}
        for key, version, value in unpack_rows(part_of(state, "held", self.name)):
            self._held.setdefault(key, {})[version] = value

    def _keys(self, key: Key) -> list[Hashable]:
        if self.per == "tensor":
            return [freeze(key)]
        return rows_of(key, len(key) if isinstance(key, (list, tuple)) else 1)

    # ------------------------------------------------------------------ tensors

    def _num_rows(self, shape: Sequence[int]) -> int:
        return shape[0] if self.per == "sample" and len(shape) else 1

    def _rows(self, key: Key, num_rows: int) -> list[Hashable]:
        return [freeze(key)] if self.per == "tensor" else rows_of(key, num_rows)

    def _layout(self, shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
        tags = ((self._num_rows(shape), 2), torch.uint8)
        return (*self.inner.layout(shape, work_dtype(dtype)), tags)

    def _encode(self, tensor: Tensor, key: Key, generator: torch.Generator | None) -> Encoded:
        return self.round_trip(tensor, key=key, generator=generator)[0]

    def round_trip(
        self, tensor: Tensor, *, key: Key = "", generator: torch.Generator | None = None
    ) -> tuple[Encoded, Tensor]:
        """Return what to send and what will arrive, and stage the value that both will hold."""
        if self.passes(tensor.shape, tensor.dtype):
            return super().round_trip(tensor, key=key, generator=generator)
        x = tensor.detach().to(work_dtype(tensor.dtype))
        largest_magnitude(x, self.name, key)
        num_rows = self._num_rows(x.shape)
        x_RN = x.reshape(num_rows, -1)
        entries = [self._sent.setdefault(row, _Sent()) for row in self._rows(key, num_rows)]
        tags, bases = [], []
        for entry in entries:
            fits = entry.base is not None and entry.base.shape == x_RN[0].shape
            entry.issued = entry.issued % _NUM_VERSIONS + 1
            tags.append((entry.base_version if fits else 0, entry.issued))
            bases.append(entry.base if fits else None)
        base_RN = _stack(bases, x_RN)
        encoded, change = self.inner.round_trip(
            (x_RN - base_RN).view(x.shape), key=key, generator=generator
        )
        value_RN = base_RN + change.reshape(num_rows, -1)
        ticket = self._ticket(encoded.ticket)
        for entry, (_, version), value in zip(entries, tags, self._split(value_RN), strict=True):
            entry.staged[ticket] = (version, value)
            if len(entry.staged) > MAX_OPEN:
                del entry.staged[min(entry.staged)]
        tag = torch.tensor(tags, dtype=torch.uint8, device=x.device)
        message = Encoded((*encoded.payload, tag), encoded.info, ticket)
        return message, within(value_RN.view(x.shape), tensor.dtype)

    def _decode(
        self, encoded: Encoded, shape: tuple[int, ...], dtype: torch.dtype, key: Key
    ) -> Tensor:
        *parts, tag = encoded.payload
        inner = Encoded(tuple(parts), encoded.info)
        change = self.inner.decode(inner, shape, work_dtype(dtype), key=key)
        num_rows = self._num_rows(shape)
        change_RN = change.reshape(num_rows, -1)
        rows, tags = self._rows(key, num_rows), tag.tolist()
        bases = [self._base(row, base) for row, (base, _) in zip(rows, tags, strict=True)]
        value_RN = _stack(bases, change_RN) + change_RN
        for row, (base, version), value in zip(rows, tags, self._split(value_RN), strict=True):
            self._hold(row, base, version, value)
        return within(value_RN.view(shape), dtype)

    def _base(self, row: Hashable, version: int) -> Tensor | None:
        """Return the held value that a message names as its base."""
        if version == 0:
            return None
        held = self._held.get(row, {})
        if version not in held:
            raise WireError(
                f"codec 'delta' got a difference to version {version} of key "
                f"{reprlib.repr(row)}, this end holds {sorted(held)}; the message is old, or this "
                "process is new: then call reset() at the sending end"
            )
        return held[version]

    def _hold(self, row: Hashable, base: int, version: int, value: Tensor) -> None:
        """Keep a new value, and of the others the base and what came after it."""
        held = self._held.setdefault(row, {})
        if version in held and not torch.equal(held[version], value):
            # The sender has begun anew; else it is a repeated message and stays in its place.
            del held[version]
        held.setdefault(version, value)
        order = list(held)
        start = order.index(base) if base else 0
        later = [known for known in order[start:] if known != base]
        # The sender can still choose among the last MAX_OPEN that it issued, and no others.
        for known in order[:start] + later[:-MAX_OPEN]:
            del held[known]

    def _split(self, value_RN: Tensor) -> list[Tensor]:
        """Return each row as a tensor of its own memory, in the dtype of the store."""
        stored = value_RN.to(torch.bfloat16) if self.store == "bf16" else value_RN
        return [row.clone() for row in stored.unbind(0)]


def _stack(bases: Sequence[Tensor | None], like_RN: Tensor) -> Tensor:
    """Return the bases as rows, zeros where there is none, in dtype and device of ``like_RN``."""
    rows = torch.zeros_like(like_RN)
    for row, base in zip(rows.unbind(0), bases, strict=True):
        if base is not None:
            row.copy_(base)
    return rows
