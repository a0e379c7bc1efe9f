"""How a tensor looks on the wire: codecs, made by name from the registry ``codecs``.

Example:
    >>> import torch
    >>> from freewheel.codecs import make_codec
    >>> codec, x = make_codec("quantise:4"), torch.linspace(-1, 1, 512).expand(64, 512)
    >>> encoded = codec.encode(x, generator=torch.Generator().manual_seed(0))
    >>> x.numel() * x.element_size() / encoded.num_bytes > 7.8
    True
"""

from freewheel.codecs.base import Codec, Encoded, FloatCodec, Key, Layout, codecs
from freewheel.codecs.bundle import Spec, decode_all, encode_all
from freewheel.codecs.cast import Cast
from freewheel.codecs.delta import Delta
from freewheel.codecs.entropy import Entropy
from freewheel.codecs.error_feedback import ErrorFeedback
from freewheel.codecs.identity import Identity
from freewheel.codecs.low_rank import LowRank
from freewheel.codecs.parse import CodecSpec, make_codec, parse_codec
from freewheel.codecs.quantise import Quantise
from freewheel.codecs.top_k import TopK

__all__ = [
    "Cast",
    "Codec",
    "CodecSpec",
    "Delta",
    "Encoded",
    "Entropy",
    "ErrorFeedback",
    "FloatCodec",
    "Identity",
    "Key",
    "Layout",
    "LowRank",
    "Quantise",
    "Spec",
    "TopK",
    "codecs",
    "decode_all",
    "encode_all",
    "make_codec",
    "parse_codec",
]
