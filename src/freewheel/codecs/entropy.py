"""A lossless coder over another codec's payload."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from freewheel.codecs.base import Encoded, Key, Layout, codecs, layout_bytes
from freewheel.codecs.parse import CodecSpec
from freewheel.codecs.wrapper import WrapperCodec
from freewheel.errors import ConfigError, WireError, nearest

_STRATEGIES = {"huffman": zlib.Z_HUFFMAN_ONLY, "default": zlib.Z_DEFAULT_STRATEGY}
_STORED, _DEFLATED = 0, 1


@codecs.register("entropy")
class Entropy(WrapperCodec):
    """Compress the bytes of another codec's payload with zlib (DEFLATE), without loss.

    Few-bit codes are far from evenly spread: a bell-shaped gradient at 4 bits holds about 3 bits
    of entropy. ``"huffman"`` codes single bytes and finds that at the highest speed; ``"default"``
    also looks for repeated runs, as in sparse activations.

    Bytes: depend on the values; at most those of ``inner`` plus 1, which is what ``num_bytes``
    says (``exact`` is False). A payload that does not shrink is stored as it is.

    Unbiased, stateful and non-finite values: as ``inner``.

    Args:
        inner: a codec whose payload has a fixed length.
        level: zlib's, 1 (fast) to 9 (small).
        strategy: ``"huffman"`` or ``"default"``.

    Raises:
        ConfigError: a setting is out of range, or ``inner`` is itself of no fixed length.

    Example:
        >>> import torch
        >>> from freewheel.codecs import make_codec
        >>> codec, x = make_codec("entropy:9,strategy=default+identity"), torch.zeros(1000)
        >>> encoded = codec.encode(x)
        >>> encoded.num_bytes < 50, codec.num_bytes(x.shape, x.dtype)
        (True, 4001)
        >>> torch.equal(codec.decode(encoded, x.shape, x.dtype), x)
        True

    References:
        Deutsch, "DEFLATE compressed data format specification version 1.3" (RFC 1951), 1996.
    """

    name = "entropy"

    def __init__(
        self, level: int = 1, strategy: str = "huffman", inner: CodecSpec = "quantise"
    ) -> None:
        super().__init__(inner)
        if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= 9:
            raise ConfigError(f"level must be an integer from 1 to 9, got {level!r}")
        if strategy not in _STRATEGIES:
            raise ConfigError(f"strategy is unknown: {strategy!r}{nearest(strategy, _STRATEGIES)}")
        if not self.inner.exact:
            raise ConfigError(
                f"inner must have a payload of fixed length, got {self.inner.name!r}; put entropy "
                "innermost but one, as in delta+entropy+quantise:4"
            )
        self.level = level
        self.strategy = strategy
        self.exact = False
        self.unbiased = self.inner.unbiased

    def _layout(self, shape: tuple[int, ...], dtype: torch.dtype) -> Layout:
        return (((1 + self.inner.num_bytes(shape, dtype),), torch.uint8),)

    def _encode(self, tensor: Tensor, key: Key, generator: torch.Generator | None) -> Encoded:
        return self._code(self.inner.encode(tensor, key=key, generator=generator))

    def round_trip(
        self, tensor: Tensor, *, key: Key = "", generator: torch.Generator | None = None
    ) -> tuple[Encoded, Tensor]:
        """Return what to send and what will arrive, by the inner codec's own account."""
        if self.passes(tensor.shape, tensor.dtype):
            return super().round_trip(tensor, key=key, generator=generator)
        encoded, arrives = self.inner.round_trip(tensor, key=key, generator=generator)
        return self._code(encoded), arrives

    def _code(self, encoded: Encoded) -> Encoded:
        """Compress the payload of the inner codec."""
        raw = b"".join(
            part.reshape(-1).view(torch.uint8).cpu().numpy().tobytes() for part in encoded.payload
        )
        coder = zlib.compressobj(self.level, zlib.DEFLATED, -15, 9, _STRATEGIES[self.strategy])
        small = coder.compress(raw) + coder.flush()
        kind, body = (_DEFLATED, small) if len(small) < len(raw) else (_STORED, raw)
        payload = torch.frombuffer(bytearray([kind]) + body, dtype=torch.uint8)
        return Encoded((payload.to(encoded.payload[0].device),), encoded.info, encoded.ticket)

    def _decode(
        self, encoded: Encoded, shape: tuple[int, ...], dtype: torch.dtype, key: Key
    ) -> Tensor:
        layout = self.inner.layout(shape, dtype)
        raw = self._inflate(encoded.payload[0].cpu().numpy().tobytes(), layout_bytes(layout))
        parts, start = [], 0
        for part_shape, part_dtype in layout:
            end = start + layout_bytes(((part_shape, part_dtype),))
            part = torch.frombuffer(bytearray(raw[start:end]), dtype=part_dtype)
            parts.append(part.view(part_shape).to(encoded.payload[0].device))
            start = end
        inner = Encoded(tuple(parts), encoded.info)
        return self.inner.decode(inner, shape, dtype, key=key)

    def _inflate(self, coded: bytes, num_bytes: int) -> bytes:
        """Return the ``num_bytes`` that were coded."""
        raw = coded[1:]
        if coded[:1] == bytes([_DEFLATED]):
            decoder = zlib.decompressobj(-15)
            try:
                # One byte of room, so that a longer stream is noticed but never expanded.
                raw = decoder.decompress(raw, num_bytes + 1)
            except zlib.error as error:
                raise WireError(
                    f"codec 'entropy' cannot decompress {len(coded)} bytes: {error}; the payload "
                    "is damaged or of another codec"
                ) from error
        if len(raw) != num_bytes or coded[0] not in (_STORED, _DEFLATED):
            raise WireError(
                f"codec 'entropy' got {len(raw)} bytes of kind {list(coded[:1])} where {num_bytes} "
                "are due; give both ends the same codec settings"
            )
        return raw
