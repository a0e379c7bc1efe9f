"""What a lossy codec leaves out of one tensor is added to the next."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
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
from freewheel.codecs.keys import freeze, pack_rows, part_of, unpack_rows
from freewheel.codecs.parse import CodecSpec
from freewheel.codecs.wrapper import MAX_OPEN, WrapperCodec


@dataclass(slots=True)
class _Residual:
    """What is still owed under one key: acknowledged, and by each open call on top of that."""

    base: Tensor
    open: dict[int, Tensor] = field(default_factory=dict)

    def settle(self, ticket: int | None, keep: bool) -> None:
        """Close one call, or all; its part is added to the base if ``keep``, else dropped."""
        for known in list(self.open) if ticket is None else [ticket]:
            change = self.open.pop(known, None)
            if change is not None and keep:
                self.base = self.base + change


@codecs.register("error_feedback")
class ErrorFeedback(WrapperCodec):
    """Add what was lost so far, encode the sum, and remember what that lost in turn.

    y = x + e, send C(y), e' = y - C(y). Over a run the sum of what arrives is the sum of what was
    meant, less the last residual: made for pushes of gradients and differences, which add up. It
    does not help activations or their gradients at a cut, where each tensor is of other samples.

    A residual of another shape than the tensor's (a smaller last batch) counts as none.

    Loss and rollback: a call changes the residual by e' - e. Open calls (neither committed nor
    rolled back) count as arrived when the next one is encoded; ``rollback`` takes a call's change
    away again, so that what was owed before it is still owed, and what it carried is the caller's
    to send again or to give up. Of more than eight open calls of a key the oldest is committed.

    Bytes: those of ``inner``. The state is at the sender alone. Non-finite values are refused.

    Args:
        inner: the codec C.

    Example:
        >>> import torch
        >>> from freewheel.codecs import ErrorFeedback
        >>> codec, x = ErrorFeedback("top_k:0.25"), torch.tensor([4.0, 3.0, 1.0, 0.0] * 2)
        >>> first, arrived = codec.round_trip(x, key="w")
        >>> codec.commit("w", first.ticket)
        >>> _, later = codec.round_trip(torch.zeros(8), key="w")
        >>> arrived.tolist(), later.tolist()
        ([4.0, 0.0, 0.0, 0.0, 4.0, 0.0, 0.0, 0.0], [0.0, 3.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0])

    References:
        Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes",
        2019.
    """

    name = "error_feedback"

    def __init__(self, inner: CodecSpec = "top_k") -> None:
        super().__init__(inner)
        self.stateful = True
        self._residuals: dict[Hashable, _Residual] = {}

    def commit(self, key: Key = "", ticket: int | None = None) -> None:
        """Keep the residual of this call: what it sent has arrived."""
        super().commit(key, ticket)
        if freeze(key) in self._residuals:
            self._residuals[freeze(key)].settle(ticket, keep=True)

    def rollback(self, key: Key = "", ticket: int | None = None) -> None:
        """Owe again what was owed before this call."""
        super().rollback(key, ticket)
        if freeze(key) in self._residuals:
            self._residuals[freeze(key)].settle(ticket, keep=False)

    def reset(self) -> None:
        """Forget all residuals."""
        super().reset()
        self._residuals.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the committed residuals and the inner codec's state."""
        rows = pack_rows((key, 0, owed.base) for key, owed in self._residuals.items())
        return {**super().state_dict(), "residuals": rows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over residuals and the inner codec's state."""
        super().load_state_dict(state)
        rows = unpack_rows(part_of(state, "residuals", self.name))
        self._residuals = {key: _Residual(residual) for key, _, residual in rows}

    def _layout(self, shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
        return self.inner.layout(shape, dtype)

    def _encode(self, tensor: Tensor, key: Key, generator: torch.Generator | None) -> Encoded:
        return self.round_trip(tensor, key=key, generator=generator)[0]

    def round_trip(
        self, tensor: Tensor, *, key: Key = "", generator: torch.Generator | None = None
    ) -> tuple[Encoded, Tensor]:
        """Return what to send and what will arrive, and stage the residual."""
        if self.passes(tensor.shape, tensor.dtype):
            return super().round_trip(tensor, key=key, generator=generator)
        x = tensor.detach().to(work_dtype(tensor.dtype))
        largest_magnitude(x, self.name, key)
        owed = self._residuals.get(freeze(key))
        if owed is None or owed.base.shape != x.shape:
            owed = self._residuals[freeze(key)] = _Residual(torch.zeros_like(x))
        before = sum(owed.open.values(), owed.base)
        wanted = x + before
        encoded, sent = self.inner.round_trip(wanted.to(tensor.dtype), key=key, generator=generator)
        ticket = self._ticket(encoded.ticket)
        owed.open[ticket] = wanted - sent - before
        if len(owed.open) > MAX_OPEN:
            self.commit(key, min(owed.open))
        return Encoded(encoded.payload, encoded.info, ticket), sent

    def _decode(
        self, encoded: Encoded, shape: tuple[int, ...], dtype: torch.dtype, key: Key
    ) -> Tensor:
        return self.inner.decode(encoded, shape, dtype, key=key)
