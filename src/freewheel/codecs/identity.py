"""The tensor itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from freewheel.codecs.base import Codec, Encoded, Key, Layout, check_payload, codecs, plain


@codecs.register("identity")
class Identity(Codec):
    """Send every tensor as it is, non-finite values included.

    Bytes: ``numel * itemsize``.

    Example:
        >>> import torch
        >>> from freewheel.codecs import Identity
        >>> Identity().num_bytes((64, 512), torch.float32)
        131072
    """

    name = "identity"
    unbiased = True

    def encode(
        self, tensor: Tensor, *, key: Key = "", generator: torch.Generator | None = None
    ) -> Encoded:
        """Return the tensor as its own payload."""
        return Encoded((plain(tensor),))

    def decode(
        self, encoded: Encoded, shape: Sequence[int], dtype: torch.dtype, *, key: Key = ""
    ) -> Tensor:
        """Return the payload."""
        check_payload(self.name, encoded, self.layout(shape, dtype))
        return encoded.payload[0]

    def layout(self, shape: Sequence[int], dtype: torch.dtype) -> Layout:
        """Return shape and dtype of the tensor."""
        return ((tuple(shape), dtype),)
