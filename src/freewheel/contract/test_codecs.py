"""What every codec must do, ours and third parties': ``pytest --pyargs freewheel.contract``."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import msgpack
import pytest
import torch
from torch import Tensor

from freewheel.codecs import Encoded, codecs, make_codec
from freewheel.errors import CheckpointError, ConfigError, NonFiniteError, WireError

#: Settings worth a run of their own; every registered codec runs with its defaults besides.
VARIANTS = [
    "cast:fp16",
    "cast:fp8_e4m3",
    "cast:fp8_e5m2",
    *(f"quantise:{bits}" for bits in (1, 2, 5, 8)),
    "quantise:3,rounding=nearest,per=row",
    "quantise:2,range=absmax,per=tensor",
    "quantise:1,range=absmax,per=7",
    "top_k:0.3,random=0.5",
    "top_k:0.3,random=1,rescale=true,per=tensor",
    "top_k:0.3,random=0.4,rescale=true,per=10",
    "low_rank:1,matrix=row,factors=cast",
    "delta,store=bf16+cast:fp16",
    "delta+error_feedback+quantise:3",
    "delta+entropy+quantise:2",
    "entropy:9,strategy=default+identity",
    "entropy+delta+quantise:2",
    "error_feedback+quantise:2",
    "error_feedback+delta+top_k:0.2",
    "error_feedback+low_rank:1",
]
SHAPES = [(), (1,), (0,), (5,), (4, 0, 3), (1, 1), (3, 33), (2, 5, 7), (64, 48), (2, 3, 4, 5)]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OTHERS = [torch.uint8, torch.int8, torch.int32, torch.int64, torch.bool, torch.complex64]
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


@pytest.fixture(params=[*codecs.names(), *VARIANTS])
def spec(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def seeded(seed: int = 0, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def sample(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64).to(dtype)


def same(one: Encoded, other: Encoded) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.payload, other.payload, strict=True))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_shape_dtype_and_bytes(spec: str, dtype: torch.dtype, device: str) -> None:
    """Scenario 13."""
    for shape in SHAPES:
        sender, receiver = make_codec(spec), make_codec(spec)
        x = sample(shape, dtype).to(device)
        before = x.clone()
        encoded, expected = sender.round_trip(x, key="k", generator=seeded(device=device))
        assert torch.equal(x, before)
        y = receiver.decode(encoded, shape, dtype, key="k")
        assert (tuple(y.shape), y.dtype, y.device) == (shape, dtype, x.device)
        assert torch.equal(y, expected)
        assert bool(y.isfinite().all())

        limit = sender.num_bytes(shape, dtype)
        if sender.exact:
            assert encoded.num_bytes == limit <= x.numel() * x.element_size()
            found = tuple((tuple(part.shape), part.dtype) for part in encoded.payload)
            assert found == sender.layout(shape, dtype)
        else:
            assert encoded.num_bytes <= limit
        assert all(part.is_contiguous() and not part.requires_grad for part in encoded.payload)
        assert len(msgpack.packb(encoded.info)) < 32


@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_ints_masks_and_complex_pass_untouched(spec: str, dtype: torch.dtype) -> None:
    """Scenarios 8 and 13."""
    x = (sample((3, 17), torch.float64) * 50).to(torch.int64).to(dtype)
    encoded = make_codec(spec).encode(x, key="k")
    assert encoded.num_bytes == x.numel() * x.element_size()
    y = make_codec(spec).decode(encoded, x.shape, dtype, key="k")
    assert y.dtype == dtype
    assert torch.equal(x, y)


def test_strides_do_not_matter(spec: str) -> None:
    """Scenario 10."""
    for x in (
        sample((24, 40)).t(),
        sample((24, 80))[:, ::2],
        sample((4, 6, 5, 8)).to(memory_format=torch.channels_last),
        sample((1, 32)).expand(16, 32),
        sample((8, 64)).requires_grad_(),
    ):
        plain = x.detach().contiguous().clone()
        one = make_codec(spec).encode(x, key="k", generator=seeded())
        other = make_codec(spec).encode(plain, key="k", generator=seeded())
        assert same(one, other)
        y = make_codec(spec).decode(one, x.shape, x.dtype, key="k")
        assert torch.equal(y, make_codec(spec).decode(other, x.shape, x.dtype, key="k"))


def test_randomness_comes_from_the_generator_alone(spec: str) -> None:
    x, state = sample((64, 48)), torch.get_rng_state()
    one = make_codec(spec).encode(x, key="k", generator=seeded(3))
    torch.manual_seed(99)
    torch.rand(5)
    other = make_codec(spec).encode(x, key="k", generator=seeded(3))
    assert same(one, other)
    torch.set_rng_state(state)
    make_codec(spec).encode(x, key="k", generator=seeded(3))
    assert torch.equal(torch.get_rng_state(), state)
    try:
        first = make_codec(spec).encode(x, key="k")
    except ConfigError as error:
        assert "Generator" in str(error)  # noqa: PT017 - either outcome is right
    else:
        assert same(first, make_codec(spec).encode(x, key="k"))


def test_zeros_arrive_as_zeros(spec: str) -> None:
    for shape in ((64, 48), (5,), (2, 5, 7)):
        x = torch.zeros(shape)
        _, y = make_codec(spec).round_trip(x, key="k", generator=seeded())
        assert torch.equal(x, y)
    _, y = make_codec(spec).round_trip(-torch.zeros(8, 33), key="k", generator=seeded())
    assert not y.any()


def test_what_arrives_resembles_what_was_sent(spec: str) -> None:
    x = torch.outer(sample((64,)), sample((48,), seed=2)) + 0.3 * sample((64, 48), seed=3)
    _, y = make_codec(spec).round_trip(x, key="k", generator=seeded())
    assert float((x * y).sum()) > 0.1 * float((x * x).sum())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_refused_or_arrive(spec: str, bad: float) -> None:
    """Scenario 15: a NaN never becomes an ordinary number on the way."""
    x = sample((64, 48))
    x[3, 5] = bad
    codec = make_codec(spec)
    try:
        _, y = codec.round_trip(x, key="k", generator=seeded())
    except NonFiniteError as error:
        assert "1 of 3072" in str(error)  # noqa: PT017 - either outcome is right
        # The refusal left nothing behind.
        x[3, 5] = 0.0
        _, y = codec.round_trip(x, key="k", generator=seeded())
        _, fresh = make_codec(spec).round_trip(x, key="k", generator=seeded())
        assert torch.equal(y, fresh)
    else:
        assert not bool(y[3, 5].isfinite())
        y[3, 5] = 0.0
        assert bool(y.isfinite().all())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_finite_stays_finite_at_any_magnitude(spec: str, dtype: torch.dtype) -> None:
    kind = torch.finfo(dtype)
    for scale in (kind.smallest_normal * 2.0**-3, 1e-5, 1e4, kind.max / 4, kind.max):
        x = (sample((16, 48), torch.float64).clamp(-1, 1) * scale).to(dtype)
        _, y = make_codec(spec).round_trip(x, key="k", generator=seeded())
        assert bool(y.isfinite().all()), scale


def test_unbiased_where_it_claims_to_be(spec: str) -> None:
    """The mean error of each value over 8,192 draws lies within its bound.

    The bound is Maurer and Pontil's empirical Bernstein bound (2009), which also holds for errors
    that are rare and large, at a joint confidence of 1 - 1e-6.
    """
    codec = make_codec(spec)
    if not codec.unbiased:
        pytest.skip("makes no such claim")
    num_draws, num_values = 8192, 24
    row = sample((1, num_values), seed=7)
    x = row.expand(num_draws, num_values)
    _, y = codec.round_trip(x, key="k", generator=seeded(11))
    error = y.double() - x.double()
    log = math.log(2 * 2 * num_values / 1e-6)
    spread = float(error.max() - error.min())
    bound = (2 * error.var(0) * log / num_draws).sqrt() + 7 * spread * log / (3 * (num_draws - 1))
    assert bool((error.mean(0).abs() <= bound).all())


def test_payload_of_another_codec_is_refused(spec: str) -> None:
    x = sample((64, 48))
    codec = make_codec(spec)
    payload = codec.encode(x, key="k", generator=seeded()).payload
    wrong = [
        payload[:-1],
        (*payload, torch.zeros(1, dtype=torch.uint8)),
        (torch.zeros(3, dtype=torch.int64), *payload[1:]),
        (torch.zeros(64 * 48 * 9, dtype=payload[0].dtype), *payload[1:]),
    ]
    for parts in wrong:
        with pytest.raises(WireError, match="codec"):
            make_codec(spec).decode(Encoded(tuple(parts)), x.shape, x.dtype, key="k")


@pytest.mark.parametrize("seed", range(3))
def test_both_ends_agree_under_loss_duplication_and_rollback(spec: str, seed: int) -> None:
    """Scenario 14: messages and acknowledgements get lost or come twice, in any combination."""
    dice, generator = random.Random(seed), seeded(seed)
    sender, receiver = make_codec(spec), make_codec(spec)
    x = {key: sample((12, 20), seed=place) for place, key in enumerate("abc")}
    pending: list[tuple[str, int]] = []
    for step in range(80):
        key = dice.choice(list(x))
        x[key] = x[key] + 0.1 * sample((12, 20), seed=1000 + step)
        encoded, expected = sender.round_trip(x[key], key=key, generator=generator)
        if dice.random() < 0.3:
            if dice.random() < 0.5:
                sender.rollback(key, encoded.ticket)
            continue
        for _ in range(dice.choice((1, 1, 1, 2))):
            y = receiver.decode(encoded, (12, 20), torch.float32, key=key)
            assert torch.equal(y, expected), step
        if dice.random() < 0.7:
            pending.append((key, encoded.ticket))
        while pending and dice.random() < 0.6:
            acknowledged = pending.pop(0)
            for _ in range(dice.choice((1, 2))):
                sender.commit(*acknowledged)
        if dice.random() < 0.05:
            pending.clear()
            for every in x:
                sender.rollback(every)


def plain_state(state: Any) -> bool:
    if isinstance(state, Mapping):
        return all(isinstance(key, str) and plain_state(part) for key, part in state.items())
    if isinstance(state, list):
        return all(plain_state(part) for part in state)
    return state is None or isinstance(state, (Tensor, bool, int, float, str))


def test_state_goes_through_a_checkpoint(spec: str) -> None:
    """Scenario 6: both ends go on from a checkpoint as if nothing had happened."""
    sender, receiver = make_codec(spec), make_codec(spec)
    for step in range(4):
        for key in ("a", "b"):
            x = sample((12, 20), seed=step)
            encoded = sender.encode(x, key=key, generator=seeded(step))
            receiver.decode(encoded, x.shape, x.dtype, key=key)
            sender.commit(key, encoded.ticket)
    assert plain_state(sender.state_dict())
    assert plain_state(receiver.state_dict())
    later_sender, later_receiver = make_codec(spec), make_codec(spec)
    later_sender.load_state_dict(sender.state_dict())
    later_receiver.load_state_dict(receiver.state_dict())
    x = sample((12, 20), seed=50)
    one, expected = sender.round_trip(x, key="a", generator=seeded(9))
    other = later_sender.encode(x, key="a", generator=seeded(9))
    assert same(one, other)
    y = later_receiver.decode(other, x.shape, x.dtype, key="a")
    assert torch.equal(y, expected)
    if sender.stateful:
        with pytest.raises(CheckpointError, match="another codec"):
            later_sender.load_state_dict({})


def test_reset_begins_anew(spec: str) -> None:
    """Scenario 14: after ``reset`` of the sender a new receiver understands it."""
    sender, receiver = make_codec(spec), make_codec(spec)
    for step in range(3):
        x = sample((12, 20), seed=step)
        encoded = sender.encode(x, key="k", generator=seeded(step))
        receiver.decode(encoded, x.shape, x.dtype, key="k")
        sender.commit("k", encoded.ticket)
    sender.reset()
    x = sample((12, 20), seed=9)
    encoded, expected = sender.round_trip(x, key="k", generator=seeded(9))
    fresh = make_codec(spec).encode(x, key="k", generator=seeded(9))
    assert same(encoded, fresh)
    for end in (make_codec(spec), receiver):
        assert torch.equal(end.decode(encoded, x.shape, x.dtype, key="k"), expected)


def test_acknowledgements_of_unknown_or_closed_calls_do_nothing(spec: str) -> None:
    one, other = make_codec(spec), make_codec(spec)
    x = sample((12, 20))
    tickets = [codec.encode(x, key="k", generator=seeded()).ticket for codec in (one, other)]
    for codec, ticket in zip((one, other), tickets, strict=True):
        codec.commit("k", ticket)
    one.commit("never")
    one.rollback("never", 17)
    for ticket in (tickets[0], tickets[0] + 1000):
        one.rollback("k", ticket)
        one.commit("k", ticket)
    one.rollback("k")
    one.commit("k")
    assert same(
        one.encode(x, key="k", generator=seeded(4)), other.encode(x, key="k", generator=seeded(4))
    )
