from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch

from freewheel.codecs import Delta, ErrorFeedback, make_codec
from freewheel.errors import ConfigError, NonFiniteError, WireError

F32 = torch.float32


def seeded(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=seeded(seed))


# ------------------------------------------------------------------ delta


def test_delta_of_a_repeated_tensor_gains_bits_with_every_visit() -> None:
    """Nearest, b bits: each visit divides the error by about the number of steps, 2**b - 1."""
    x = normal(64, 32)
    sender, receiver = Delta("quantise:4,rounding=nearest"), Delta("quantise:4,rounding=nearest")
    errors = []
    for _ in range(4):
        encoded = sender.encode(x, key="h")
        y = receiver.decode(encoded, x.shape, F32, key="h")
        sender.commit("h", encoded.ticket)
        errors.append(float((x - y).abs().max()))
    ratios = [before / after for before, after in pairwise(errors)]
    assert all(10 < ratio < 31 for ratio in ratios), errors


def test_delta_without_commit_stays_with_the_old_base() -> None:
    sender, receiver = Delta("quantise:2,rounding=nearest"), Delta("quantise:2,rounding=nearest")
    x = normal(8, 32)
    first = sender.encode(x, key="h")
    receiver.decode(first, x.shape, F32, key="h")
    second = sender.encode(x, key="h")
    assert torch.equal(first.payload[0], second.payload[0])
    sender.rollback("h")
    sender.commit("h")
    third = sender.encode(x, key="h")
    assert torch.equal(first.payload[0], third.payload[0])


def test_delta_late_acknowledgement_does_not_take_the_base_back() -> None:
    sender, receiver = Delta("cast:bf16"), Delta("cast:bf16")
    x, y, z = normal(40), normal(40, seed=2), normal(40, seed=3)
    one, two = sender.encode(x, key="h"), sender.encode(y, key="h")
    for message in (one, two):
        receiver.decode(message, (40,), F32, key="h")
    sender.commit("h", two.ticket)
    sender.commit("h", one.ticket)
    three, expected = sender.round_trip(z, key="h")
    assert three.payload[-1].tolist() == [[2, 3]]
    assert torch.equal(receiver.decode(three, (40,), F32, key="h"), expected)


def test_delta_counts_versions_round_and_round() -> None:
    sender, receiver = Delta("cast:bf16"), Delta("cast:bf16")
    for step in range(600):
        x = normal(16, seed=step)
        encoded, expected = sender.round_trip(x, key="h")
        if step % 3 != 1:
            assert torch.equal(receiver.decode(encoded, (16,), F32, key="h"), expected)
            sender.commit("h", encoded.ticket)


def test_delta_by_sample_in_any_company() -> None:
    sender, receiver = Delta("quantise:6", per="sample"), Delta("quantise:6", per="sample")
    data = normal(100, 48)
    generator = seeded()
    errors = []
    for _ in range(3):
        order = torch.randperm(100, generator=generator).tolist()
        worst = 0.0
        for start in range(0, 100, 16):
            ids = order[start : start + 16]
            x = data[ids]
            encoded = sender.encode(x, key=ids, generator=generator)
            assert encoded.num_bytes == sender.num_bytes(x.shape, F32)
            y = receiver.decode(encoded, x.shape, F32, key=ids)
            sender.commit(ids, encoded.ticket)
            receiver.commit(ids)
            worst = max(worst, float((x - y).abs().max()))
        errors.append(worst)
    assert errors[1] < errors[0] / 10
    assert errors[2] < errors[1] / 10
    with pytest.raises(ConfigError, match="one key for each of the 16 samples"):
        sender.encode(data[:16], key="batch", generator=generator)


def test_delta_receiver_frees_old_values() -> None:
    sender, receiver = Delta("cast:bf16"), Delta("cast:bf16")
    for step in range(30):
        encoded = sender.encode(normal(16, seed=step), key="h")
        receiver.decode(encoded, (16,), F32, key="h")
        if step % 10 == 9:
            sender.commit("h")
    held = sum(len(group["keys"]) for group in receiver.state_dict()["held"])
    assert held <= 10
    receiver.commit("h")
    assert [len(group["keys"]) for group in receiver.state_dict()["held"]] == [1]
    assert torch.isfinite(
        receiver.decode(sender.encode(normal(16), key="h"), (16,), F32, key="h")
    ).all()


def test_delta_notices_a_receiver_that_lost_its_state() -> None:
    sender = Delta("cast:bf16")
    x = normal(16)
    encoded = sender.encode(x, key="h")
    sender.commit("h", encoded.ticket)
    with pytest.raises(WireError, match=r"version 1 of key 'h'.*reset\(\) at the sending end"):
        Delta("cast:bf16").decode(sender.encode(x, key="h"), (16,), F32, key="h")


def test_delta_of_another_shape_begins_anew() -> None:
    sender, receiver = Delta("cast:bf16"), Delta("cast:bf16")
    for rows in (8, 8, 5, 8):
        x = normal(rows, 6, seed=rows)
        encoded, expected = sender.round_trip(x, key="h")
        assert torch.equal(receiver.decode(encoded, x.shape, F32, key="h"), expected)
        sender.commit("h", encoded.ticket)


def test_delta_store_in_bf16_is_the_same_at_both_ends() -> None:
    sender, receiver = (
        make_codec("delta,store=bf16+quantise:3"),
        make_codec("delta,store=bf16+quantise:3"),
    )
    for step in range(5):
        x = normal(8, 40) + 0.01 * normal(8, 40, seed=step + 10)
        encoded, expected = sender.round_trip(x, key="h", generator=seeded(step))
        assert torch.equal(receiver.decode(encoded, x.shape, F32, key="h"), expected)
        sender.commit("h", encoded.ticket)
    assert sender.state_dict()["sent"][0]["values"].dtype == torch.bfloat16


def test_delta_refuses_what_would_poison_its_base() -> None:
    x = normal(16)
    x[2] = math.inf
    with pytest.raises(NonFiniteError, match="'delta'"):
        Delta("cast:bf16").encode(x, key="h")


def test_delta_settings() -> None:
    with pytest.raises(ConfigError, match="did you mean 'sample'"):
        make_codec({"name": "delta", "per": "samples"})
    with pytest.raises(ConfigError, match="store is unknown"):
        make_codec({"name": "delta", "store": "fp4"})


# ------------------------------------------------------------------ error feedback


@pytest.mark.parametrize("inner", ["top_k:0.1", "quantise:2", "low_rank:1", "top_k:0.2,random=0.5"])
def test_what_arrives_adds_up_to_what_was_meant(inner: str) -> None:
    """The sum telescopes: all that was sent is all that was meant, less the last residual."""
    codec, generator = ErrorFeedback(inner), seeded()
    meant, arrived = torch.zeros(20, 30).double(), torch.zeros(20, 30).double()
    for step in range(50):
        x = normal(20, 30, seed=step) + 0.3
        encoded, y = codec.round_trip(x, key="w", generator=generator)
        codec.commit("w", encoded.ticket)
        meant += x.double()
        arrived += y.double()
    residual = codec.state_dict()["residuals"][0]["values"][0].double()
    assert torch.allclose(arrived + residual, meant, atol=1e-4)
    assert float(residual.norm()) < float(meant.norm())


def test_rollback_owes_what_was_owed_before() -> None:
    codec = ErrorFeedback("top_k:0.25")
    codec.commit("w", codec.encode(torch.tensor([4.0, 3.0, 2.0, 1.0] * 2), key="w").ticket)
    lost = codec.encode(torch.tensor([9.0, 9.0, 9.0, 9.0] * 2), key="w")
    codec.rollback("w", lost.ticket)
    _, y = codec.round_trip(torch.zeros(8), key="w")
    assert y.tolist() == [0.0, 3.0, 0.0, 0.0] * 2


def test_open_calls_settle_in_any_order() -> None:
    """The middle one of three is lost: what arrived and what is owed are what was meant."""
    codec = ErrorFeedback("top_k:0.25")
    xs = [torch.arange(8.0), 10 - torch.arange(8.0), torch.arange(8.0) ** 2]
    calls = [codec.round_trip(x, key="w") for x in xs]
    codec.commit("w", calls[2][0].ticket)
    codec.rollback("w", calls[1][0].ticket)
    codec.commit("w", calls[0][0].ticket)
    residual = codec.state_dict()["residuals"][0]["values"][0]
    assert torch.equal(calls[0][1] + calls[2][1] + residual, xs[0] + xs[2])


def test_calls_left_open_count_as_arrived() -> None:
    codec, sent = ErrorFeedback("top_k:0.25"), torch.zeros(8)
    for _ in range(30):
        sent += codec.round_trip(torch.arange(8.0), key="w")[1]
    codec.commit("w")
    residual = codec.state_dict()["residuals"][0]["values"][0]
    assert torch.allclose(sent + residual, 30 * torch.arange(8.0))


def test_a_smaller_last_batch_owes_nothing() -> None:
    codec = ErrorFeedback("top_k:0.25")
    codec.commit("w", codec.encode(normal(8, 4), key="w").ticket)
    x = normal(3, 4, seed=2)
    assert torch.equal(codec.round_trip(x, key="w")[1], make_codec("top_k:0.25").round_trip(x)[1])


def test_keys_have_their_own_residual() -> None:
    codec = ErrorFeedback("top_k:0.25")
    codec.commit("a", codec.encode(torch.arange(8.0), key="a").ticket)
    _, y = codec.round_trip(torch.zeros(8), key="b")
    assert not y.any()
