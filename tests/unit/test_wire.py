"""The bytes of messages: round trips, sizes, pieces, and bytes that nobody of ours wrote."""

from __future__ import annotations

import itertools
import math
from typing import Any

import msgpack
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from freewheel.errors import ConfigError, LinkError, ModelError, WireError
from freewheel.transport.base import Message
from freewheel.transport.schema import DTYPES, Limits, tensor_bytes
from freewheel.transport.wire import HEADER, Decoder, Encoder

RUN = b"run-0001"
SMALL = Limits(
    piece_bytes=1000, max_message_bytes=20_000, max_tensor_bytes=100_000, max_text_bytes=4000
)


def pair(limits: Limits | None = None) -> tuple[Encoder, Decoder]:
    return Encoder(RUN, limits), Decoder(RUN, "stage 0", limits)


def journey(message: Message, limits: Limits | None = None) -> Message:
    encoder, decoder = pair(limits)
    encoded = encoder.encode(message)
    # as from a network: memory of its own, which may be written to
    *none, last = [decoder.decode([bytearray(f) for f in piece]) for piece in encoded.pieces]
    assert none == [None] * len(none)
    assert last is not None
    assert last[1] == encoded.num_bytes
    return last[0]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


SHAPES = st.lists(st.integers(0, 7), max_size=4).map(tuple)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype, shape = DTYPES[draw(st.sampled_from(sorted(DTYPES)))], draw(SHAPES)
    size = math.prod(shape) * dtype.itemsize
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype == torch.bool:
        raw = bytearray(byte & 1 for byte in raw)
    if not size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).reshape(shape)


@settings(max_examples=60)
@given(st.lists(tensors(), max_size=4).map(tuple), st.integers(1, 10_000), st.booleans())
def test_scenario_13_any_tensors_arrive_bit_for_bit_in_pieces_or_not(
    sent: tuple[torch.Tensor, ...], piece_bytes: int, with_meta: bool
) -> None:
    limits = Limits(piece_bytes=piece_bytes)
    message = Message("x", sent, clock=3, meta={"a": 1} if with_meta else {})
    came = journey(message, limits)
    assert [(t.dtype, t.shape, bits(t)) for t in came.tensors] == [
        (t.dtype, t.shape, bits(t)) for t in sent
    ]
    assert (came.kind, came.clock, came.meta) == ("x", 3, message.meta)


def test_the_header_is_24_bytes_and_the_schema_travels_once_for_each_shape() -> None:
    encoder, decoder = pair()
    lengths = []
    for rows in (8, 8, 5, 8, 5):
        encoded = encoder.encode(Message("forward", (torch.ones(rows, 2),)))
        lengths.append([len(frame) for frame in encoded.pieces[0]])
        decoded = decoder.decode(encoded.pieces[0])
        assert decoded is not None
        assert decoded[0].tensors[0].shape == (rows, 2)
    assert lengths[1] == [24 + 64]
    assert lengths[3] == [24 + 64]
    assert lengths[4] == [24 + 40]
    assert [len(frames) for frames in lengths] == [2, 1, 2, 1, 1]


def test_a_large_tensor_is_neither_copied_when_sent_nor_when_received() -> None:
    encoder, decoder = pair()
    tensor = torch.zeros(100_000)
    (frames,) = encoder.encode(Message("x", (tensor,))).pieces
    decoded = decoder.decode(frames)
    assert decoded is not None
    assert decoded[0].tensors[0].data_ptr() == tensor.data_ptr()


def test_many_small_tensors_share_a_frame_and_large_ones_have_their_own() -> None:
    small, large = torch.ones(100), torch.ones(50_000)
    (frames,) = pair()[0].encode(Message("x", (small, small, large, small, large, large))).pieces
    assert [len(frame) for frame in frames[2:]] == [800, 200_000, 400, 200_000, 200_000]


def test_schemas_are_bounded_in_number_and_text_and_old_ones_are_announced_again() -> None:
    for limits in (
        Limits(max_schemas=3),
        Limits(max_text_bytes=40),  # text of eight times that in all, about 12 schemas
    ):
        encoder, decoder = pair(limits)
        for turn, rows in itertools.product(range(3), range(40)):
            message = Message("x", (torch.full((rows + 1,), float(rows)),), clock=turn)
            decoded = decoder.decode(encoder.encode(message).pieces[0])
            assert decoded is not None
            assert decoded[0].tensors[0].tolist() == [float(rows)] * (rows + 1)
        again = encoder.encode(Message("x", (torch.ones(40),)))
        assert len(again.pieces[0]) == 1
        encoder.forget()
        assert len(encoder.encode(Message("x", (torch.ones(40),))).pieces[0]) == 2


def test_a_stamp_of_delivery_travels_but_is_not_counted() -> None:
    plain, stamped = pair(), pair()
    for stamp in (0, 123_456_789_012, -5):
        message = Message("x", (torch.ones(57),))  # 24 + 228 = 252 bytes, near the bound of 255
        expected = plain[0].encode(message).num_bytes
        encoded = stamped[0].encode(Message("x", message.tensors, deliver_at_ns=stamp))
        decoded = stamped[1].decode(encoded.pieces[0])
        assert decoded is not None
        assert decoded[0].deliver_at_ns == stamp
        assert encoded.num_bytes == decoded[1] == expected


def pieces_of(numel: int, encoder: Encoder) -> list[Any]:
    return encoder.encode(Message("x", (torch.arange(numel),))).pieces


def test_a_message_of_which_a_piece_is_missing_is_refused_and_the_next_is_whole() -> None:
    encoder, decoder = pair(SMALL)
    first, second = pieces_of(500, encoder), pieces_of(500, encoder)
    assert len(first) == 4
    assert decoder.decode(first[0]) is None
    with pytest.raises(WireError, match="does not continue"):
        decoder.decode(first[2])
    with pytest.raises(WireError, match="does not continue"):
        decoder.decode(first[3])
    # the first half of one and the second half of another of the same shape
    for piece in first[:2]:
        assert decoder.decode(piece) is None
    with pytest.raises(WireError, match="does not continue"):
        decoder.decode(second[2])
    *_, last = [decoder.decode(piece) for piece in second]
    assert last is not None
    assert torch.equal(last[0].tensors[0], torch.arange(500))


def test_scenario_20_a_message_of_another_run_is_refused_by_its_id() -> None:
    (frames,) = Encoder(b"run-0002").encode(Message("push")).pieces
    with pytest.raises(WireError, match=f"another run, {b'run-0002'.hex()}"):
        Decoder(RUN, "replica 0").decode(frames)


@pytest.mark.parametrize(
    "tensors",
    [
        [["float32", [2**40]]],
        [["float32", [2**31, 2**31, 2**31]]],
        [["float32", [0, 2**62, 2**62]]],
        [["float32", [-1]]],
        [["float32", [1.5]]],
        [["float32", [True]]],
        [["float32", [1] * 64]],
        [["float99", [1]]],
        [["quint8", [1]]],
        [[["float32"], [1]]],
        [["float32", 3]],
        [["float32"]],
        [["float32", [25_000]], ["uint8", [1]]],
        "tensors",
        {"float32": [1]},
        None,
    ],
)
def test_a_schema_that_breaks_a_limit_is_refused_before_memory_is_taken(
    tensors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(*_: Any, **__: Any) -> None:
        raise AssertionError("memory was taken")

    monkeypatch.setattr(torch, "empty", take)
    monkeypatch.setattr(torch, "frombuffer", take)
    for flags, more in ((1, b""), (5, bytes(8))):
        head = HEADER.pack(1, flags, 0, RUN, 0, 0, 0, 0) + more
        frames = [head, msgpack.packb(["x", None, tensors]), bytes(100)]
        with pytest.raises(WireError):
            Decoder(RUN, "stage 0", SMALL).decode(frames)


def test_text_that_unpacks_to_much_is_bounded() -> None:
    decoder = Decoder(RUN, "stage 0")
    with pytest.raises(WireError, match="bytes of text"):
        decoder.decode([HEADER.pack(1, 2, 0, RUN, 0, 0, 0, 0), bytes(2 << 20)])
    deep = b"\x91" * 100_000
    with pytest.raises(WireError, match="not msgpack"):
        decoder.decode([HEADER.pack(1, 2, 0, RUN, 0, 0, 0, 0), deep])
    extension = msgpack.packb({"a": msgpack.ExtType(5, b"x")})
    with pytest.raises(WireError, match="extension of type 5"):
        decoder.decode([HEADER.pack(1, 2, 0, RUN, 0, 0, 0, 0), extension])


HOSTILE_HEADERS = st.builds(
    lambda version, flags, schema, numbers, more: (
        HEADER.pack(version, flags, schema, RUN, *numbers) + more
    ),
    st.sampled_from([1, 1, 1, 0, 2, 255]),
    st.integers(0, 31),
    st.integers(0, 300),
    st.tuples(st.just(0), st.just(0), st.just(0), st.integers(0, 2)),
    st.binary(max_size=40) | st.sampled_from([bytes(8), bytes(16), (1000).to_bytes(8, "little")]),
)
MSGPACK = st.recursive(
    st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
SHAPE_LIKE = st.lists(st.integers(-2, 2**64 - 1) | st.integers(0, 40), max_size=4)
SCHEMA_LIKE = st.tuples(
    st.just("x"),
    MSGPACK,
    st.lists(st.tuples(st.sampled_from([*DTYPES, "quint8"]), SHAPE_LIKE), max_size=3),
)
TEXT = st.one_of(st.binary(max_size=64), (MSGPACK | SCHEMA_LIKE).map(msgpack.packb))
FRAMES = st.builds(
    lambda head, rest: [head, *rest],
    HOSTILE_HEADERS | st.binary(max_size=40),
    st.lists(TEXT | st.sampled_from([bytes(1000), bytes(160)]), max_size=4),
)


@settings(max_examples=120)
@given(st.lists(FRAMES | st.lists(st.binary(max_size=64), max_size=4), min_size=1, max_size=6))
@example([[b""]])
@example([[]])
def test_hostile_bytes_are_a_message_or_a_wire_error_and_never_anything_else(
    transfers: list[list[bytes]],
) -> None:
    decoder = Decoder(RUN, "stage 0", SMALL)
    for frames in transfers:
        try:
            decoded = decoder.decode(frames)
        except WireError:
            continue
        if decoded is not None:
            assert sum(t.nbytes for t in decoded[0].tensors) <= SMALL.max_tensor_bytes


@settings(max_examples=80)
@given(st.data())
def test_our_own_bytes_with_some_changed_are_a_message_or_a_wire_error(data: st.DataObject) -> None:
    encoder, decoder = pair(SMALL)
    sent = (torch.arange(300), torch.ones(3, 5))
    message = Message("state", sent, tree=["list", []], meta={"loss": 1.5}, deliver_at_ns=9)
    for piece in encoder.encode(message).pieces:
        frames = [bytearray(frame) for frame in piece]
        for _ in range(data.draw(st.integers(0, 3))):
            frame = frames[data.draw(st.integers(0, len(frames) - 1))]
            at = data.draw(st.integers(0, max(len(frame) - 1, 0)))
            frame[at : at + 1] = data.draw(st.binary(max_size=2))
        try:
            decoder.decode(frames)
        except WireError:
            pass


@pytest.mark.parametrize("field", ["clock", "num_samples", "index"])
def test_a_field_out_of_its_range_is_refused_when_sent(field: str) -> None:
    for value in (-1, 2**32):
        with pytest.raises(LinkError, match=r"must be in \[0, 2\*\*32\)"):
            pair()[0].encode(Message("push", **{field: value}))  # type: ignore[arg-type]  # one int


def test_what_cannot_travel_is_refused_when_sent_with_a_remedy() -> None:
    encoder, _ = pair(SMALL)
    for tensor in (
        torch.ones(2, 2).to_sparse(),
        torch.empty(2, device="meta"),
    ):
        with pytest.raises(ModelError, match="make it a dense tensor"):
            tensor_bytes(tensor)
    with pytest.raises(LinkError, match="raise max_tensor_bytes"):
        encoder.encode(Message("x", (torch.ones(25_001),)))
    with pytest.raises(LinkError, match="meta of 'x' cannot be written"):
        encoder.encode(Message("x", meta={"a": {1, 2}}))
    with pytest.raises(LinkError, match="send large data as tensors"):
        encoder.encode(Message("x", meta={"a": "b" * 5000}))


def test_limits_and_run_ids_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="piece_bytes must be from 1"):
        Limits(piece_bytes=16 << 20, max_message_bytes=16 << 20)
    with pytest.raises(ConfigError, match="run id must be 8 bytes"):
        Encoder(b"short")
    with pytest.raises(ConfigError, match="max_schemas"):
        Limits(max_schemas=0)
