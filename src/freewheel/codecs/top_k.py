"""Sparse tensors: the k largest values of each group, some at random, or both."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from freewheel.codecs.base import (
    Encoded,
    FloatCodec,
    Key,
    Layout,
    codecs,
    largest_magnitude,
    work_dtype,
)
from freewheel.codecs.grouping import Per, check_per, group_shape, grouped
from freewheel.codecs.packing import (
    index_bits,
    pack,
    pack_indices,
    packed_bytes,
    packed_index_bytes,
    unpack,
    unpack_indices,
)
from freewheel.codecs.parse import CodecSpec
from freewheel.codecs.wrapper import stateless
from freewheel.errors import ConfigError, WireError


@codecs.register("top_k")
class TopK(FloatCodec):
    """Send k of the M values of each group and their places; the others arrive as zero.

    k = max(1, round(ratio * M)), of which round(random * k) (at least 1 if ``random`` > 0) are
    drawn without replacement from all but the largest, which make up the rest of k:

    - ``random = 0``: plain top-k; biased; wants ``error_feedback`` where updates add up.
    - ``random = 0.1``: randomised top-k; biased; explores, as training through a cut needs.
    - ``random > 0, rescale = True``: the random ones are multiplied by (values they were drawn
      from) / (number drawn), which makes it unbiased; with ``random = 1`` it is random-k.

    Bytes: those of ``values`` for a tensor of (G, k), plus the places: the smaller of a bitmap,
    ``ceil(G M / 8)``, and packed indices of b = ceil(log2 M) bits, ``b * ceil(G k / 8)`` for
    b <= 8, else 8 bits of each index at a time (``G k`` for each full byte).

    Non-finite values are refused.

    Args:
        ratio: part of the values to send, in (0, 1).
        per: the groups: ``"sample"``, ``"row"``, ``"tensor"``, or a block length.
        random: part of k to choose at random, in [0, 1].
        rescale: multiply the random part so that the codec is unbiased.
        values: the codec of the chosen values, itself without state.

    Raises:
        ConfigError: a setting is out of range.

    Example:
        >>> import torch
        >>> from freewheel.codecs import TopK
        >>> codec, x = TopK(ratio=0.25), torch.tensor([[0.1, -4.0, 3.0, 0.2, 0.3, 2.0, 1.0, 0.0]])
        >>> codec.decode(codec.encode(x), x.shape, x.dtype)
        tensor([[ 0., -4.,  3.,  0.,  0.,  0.,  0.,  0.]])
        >>> codec.num_bytes((1, 8), torch.float32)
        9

    References:
        Stich, Cordonnier and Jaggi, "Sparsified SGD with memory", 2018. Zheng et al., "Reducing
        communication for split learning by randomized top-k sparsification", 2023.
    """

    name = "top_k"

    def __init__(
        self,
        ratio: float = 0.1,
        per: Per = "sample",
        random: float = 0.0,
        rescale: bool = False,
        values: CodecSpec = "identity",
    ) -> None:
        if not 0 < ratio < 1:
            raise ConfigError(f"ratio must lie between 0 and 1, got {ratio}; for all use identity")
        if not 0 <= random <= 1:
            raise ConfigError(f"random must lie in [0, 1], got {random}")
        if rescale and random == 0:
            raise ConfigError(
                "rescale needs a random part, got random = 0; set random = 1 for random-k"
            )
        self.ratio = ratio
        self.per = check_per(per)
        self.random = random
        self.rescale = rescale
        self.values = stateless(values, "values")
        self.unbiased = rescale and self.values.unbiased

    def _counts(self, length: int) -> tuple[int, int]:
        """Return how many values of a group are sent, and how many of them are random."""
        chosen = max(1, round(self.ratio * length))
        return chosen, max(1, round(self.random * chosen)) if self.random else 0

    def _layout(self, shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
        num_groups, length = group_shape(shape, self.per)
        chosen, _ = self._counts(length)
        bitmap = packed_bytes(num_groups * length, 1)
        indices = packed_index_bytes(num_groups * chosen, index_bits(length))
        values = self.values.layout((num_groups, chosen), dtype)
        return (*values, ((min(bitmap, indices),), torch.uint8))

    def _as_bitmap(self, num_groups: int, length: int, chosen: int) -> bool:
        indices = packed_index_bytes(num_groups * chosen, index_bits(length))
        return packed_bytes(num_groups * length, 1) <= indices

    def _encode(self, tensor: Tensor, key: Key, generator: torch.Generator | None) -> Encoded:
        num_groups, length = group_shape(tensor.shape, self.per)
        chosen, at_random = self._counts(length)
        work = work_dtype(tensor.dtype)
        x_GM = grouped(tensor.reshape(-1).to(work), num_groups, length)
        largest_magnitude(tensor, self.name, key)
        places_GK = x_GM.abs().topk(chosen - at_random, dim=1, sorted=False).indices
        factor_GM = None
        if at_random:
            drawn_GK = self._draw(places_GK, x_GM, at_random, generator)
            places_GK = torch.cat([places_GK, drawn_GK], 1)
            if self.rescale:
                factor = (length - chosen + at_random) / at_random
                factor_GM = torch.ones_like(x_GM).scatter_(1, drawn_GK, factor)
        places_GK = places_GK.sort(1).values
        values_GK = (x_GM if factor_GM is None else x_GM * factor_GM).gather(1, places_GK)
        limit = torch.finfo(tensor.dtype).max
        values_GK = values_GK.clamp(-limit, limit).to(tensor.dtype)
        values = self.values.encode(values_GK, generator=generator)
        if self._as_bitmap(num_groups, length, chosen):
            mask_GM = torch.zeros_like(x_GM, dtype=torch.uint8).scatter_(1, places_GK, 1)
            places = pack(mask_GM.view(-1), 1)
        else:
            places = pack_indices(places_GK.view(-1), index_bits(length))
        return Encoded((*values.payload, places))

    @staticmethod
    def _draw(
        taken_GK: Tensor, x_GM: Tensor, count: int, generator: torch.Generator | None
    ) -> Tensor:
        """Draw ``count`` places of each group that are not taken, all equally likely."""
        if generator is None:
            raise ConfigError(
                "a random part needs a torch.Generator, got none; pass generator=, or random = 0"
            )
        # float64, because ties among few random bits would favour low places.
        lots_GM = torch.rand(
            x_GM.shape, dtype=torch.float64, device=generator.device, generator=generator
        ).to(x_GM.device)
        return lots_GM.scatter_(1, taken_GK, -1.0).topk(count, dim=1, sorted=False).indices

    def _decode(
        self, encoded: Encoded, shape: tuple[int, ...], dtype: torch.dtype, key: Key
    ) -> Tensor:
        num_groups, length = group_shape(shape, self.per)
        chosen, _ = self._counts(length)
        *parts, packed = encoded.payload
        values_GK = self.values.decode(Encoded(tuple(parts)), (num_groups, chosen), dtype)
        if self._as_bitmap(num_groups, length, chosen):
            mask_GM = unpack(packed, 1, num_groups * length).view(num_groups, length)
            valid = bool((mask_GM.sum(1) == chosen).all())
            places_GK = mask_GM.nonzero()[:, 1].view(num_groups, chosen) if valid else None
        else:
            indices = unpack_indices(packed, index_bits(length), num_groups * chosen)
            valid = bool((indices < length).all())
            places_GK = indices.view(num_groups, chosen)
        if places_GK is None or not valid:
            raise WireError(
                f"codec 'top_k' got places that are not {chosen} of {length} in each group; the "
                "payload is damaged or of another codec"
            )
        y_GM = values_GK.new_zeros(num_groups, length).scatter_(1, places_GK, values_GK)
        return y_GM.view(-1)[: math.prod(shape)].view(shape)
