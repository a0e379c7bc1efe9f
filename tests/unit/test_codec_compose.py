from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from scipy import stats

from freewheel.codecs import (
    Codec,
    Encoded,
    ErrorFeedback,
    codecs,
    decode_all,
    encode_all,
    make_codec,
    parse_codec,
)
from freewheel.errors import ConfigError, WireError


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(seed))


# ------------------------------------------------------------------ entropy


def test_entropy_changes_no_value() -> None:
    x = normal(64, 128)
    for inner in ("quantise:3", "cast:bf16", "identity", "top_k:0.1"):
        _, y = make_codec(f"entropy+{inner}").round_trip(x, generator=seeded())
        _, z = make_codec(inner).round_trip(x, generator=seeded())
        assert torch.equal(y, z)


def test_huffman_comes_close_to_the_entropy_of_the_bytes() -> None:
    """Shannon: no code of single bytes is shorter; Huffman's is at most 1 bit a byte longer."""
    x = normal(256, 512)
    inner = make_codec("quantise:4").encode(x, generator=seeded())
    raw = np.concatenate([part.view(torch.uint8).numpy().ravel() for part in inner.payload])
    bits = stats.entropy(np.bincount(raw, minlength=256), base=2)
    coded = make_codec("entropy+quantise:4").encode(x, generator=seeded()).num_bytes
    assert bits / 8 * raw.size < coded < 1.05 * bits / 8 * raw.size
    assert coded < 0.9 * raw.size


def test_what_does_not_shrink_is_stored() -> None:
    noise = torch.from_numpy(np.random.default_rng(1).integers(0, 256, 4096, np.uint8))
    x = noise.view(torch.bfloat16).nan_to_num(0, 0, 0)
    codec = make_codec("entropy+identity")
    encoded = codec.encode(x)
    assert encoded.num_bytes <= codec.num_bytes(x.shape, x.dtype) == 4096 + 1
    assert torch.equal(codec.decode(encoded, x.shape, x.dtype), x)


def test_a_bomb_is_refused_before_it_expands() -> None:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = bytes([1]) + coder.compress(bytes(5_000_000)) + coder.flush()
    codec = make_codec("entropy+quantise:4")
    payload = torch.frombuffer(bytearray(bomb), dtype=torch.uint8)
    shape = (1024, 1024)
    with pytest.raises(WireError, match="bytes of kind"):
        codec.decode(Encoded((payload,)), shape, torch.float32)


@pytest.mark.parametrize("damage", [b"", bytes([1]), bytes([1, 255, 255, 255]), bytes([7, 1, 2])])
def test_damaged_bytes_are_refused(damage: bytes) -> None:
    payload = torch.tensor(list(damage), dtype=torch.uint8)
    with pytest.raises(WireError, match="entropy"):
        make_codec("entropy+quantise:4").decode(Encoded((payload,)), (64, 64), torch.float32)


# ------------------------------------------------------------------ configuration


def test_strings_and_tables_make_the_same_codec() -> None:
    table = {"name": "error_feedback", "inner": {"name": "top_k", "ratio": 0.01, "per": "row"}}
    assert parse_codec("error_feedback+top_k:0.01,per=row") == table
    for spec in (table, "error_feedback + top_k: 0.01, per = row"):
        codec = make_codec(spec)
        assert isinstance(codec, ErrorFeedback)
        # One value of 100 in each of 10 rows, and its place in 7 bits: 7 planes of 2 bytes.
        assert codec.num_bytes((10, 100), torch.float32) == 10 * 4 + 7 * 2


def test_a_codec_is_returned_as_it_is() -> None:
    codec = make_codec("cast:fp16")
    assert make_codec(codec) is codec


def test_numbers_words_and_truth_values() -> None:
    parsed = parse_codec("top_k:0.1,random=1,rescale=true,per=tensor")
    assert parsed == {"name": "top_k", "ratio": 0.1, "random": 1, "rescale": True, "per": "tensor"}
    assert parse_codec("delta,per=sample+cast:fp16")["per"] == "sample"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("quantize:4", "did you mean 'quantise'"),
        ("quantise:4,row", "write key=value"),
        ("quantise:4,bit=3", "has no setting 'bit'; did you mean 'bits'"),
        ("quantise:4+delta", "wraps no other"),
        ("identity:3", "has no setting"),
        ("quantise:four", "bits must be an integer"),
        ("entropy+entropy+cast", "fixed length"),
        ("entropy:11", "from 1 to 9"),
        ("entropy:1,strategy=huffmann", "did you mean 'huffman'"),
        ("", "unknown codec ''"),
    ],
)
def test_bad_strings_are_config_errors(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_codec(text)


def test_a_table_needs_a_name() -> None:
    with pytest.raises(ConfigError, match='name = "quantise"'):
        make_codec({"bits": 4})


def test_every_name_makes_a_codec_of_that_name() -> None:
    for name in codecs.names():
        codec = make_codec(name)
        assert isinstance(codec, Codec)
        assert codec.name == name


# ------------------------------------------------------------------ several tensors


def test_a_boundary_of_floats_masks_and_nothing() -> None:
    """Scenario 8."""
    codec = make_codec("quantise:8")
    tensors = [normal(4, 40), torch.arange(4), normal(4, 40) > 0, torch.zeros(0, 3)]
    keys = ["h", "ids", "mask", "empty"]
    payload, specs, tickets = encode_all(codec, tensors, keys, generator=seeded())
    assert len(payload) == 2 + 1 + 1 + 1
    assert len(tickets) == 4
    found = decode_all(make_codec("quantise:8"), payload, specs, keys)
    assert float((found[0] - tensors[0]).abs().max()) < 0.05
    assert all(torch.equal(a, b) for a, b in zip(found[1:], tensors[1:], strict=True))
    with pytest.raises(WireError, match="got 4 payload tensors for 4 tensors"):
        decode_all(codec, payload[:-1], specs, keys)
