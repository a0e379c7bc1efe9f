"""Codecs at the cuts of a pipeline: bytes by formula, training still right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from freewheel.errors import ConfigError
from freewheel.runtime.pieces import Given
from in_threads import Outcome, run_pipeline

WIDTH, BATCH, STEPS = 64, 16, 12


def make_model() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(6, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 3)]


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(BATCH * 3, 6, generator=generator)
    return x, (x[:, :3].argmax(1))


def train(forward: str, backward: str, steps: int = STEPS) -> Outcome:
    given = Given(
        make_model,
        lambda: (make_data(), make_data()),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.Adam(p, lr=1e-2),
    )
    return run_pipeline(
        given,
        layout={"stages": 2, "micro_batches": 1, "cuts": ["1"]},
        data={"batch_size": BATCH},
        train={"steps": steps},
        codec={"forward": forward, "backward": backward},
    )


def sent(outcome: Outcome, to: str) -> int:
    return sum(totals["bytes_to"].get(to, 0) for totals in outcome.totals)


@pytest.mark.parametrize(
    ("codec", "payload"),
    [
        ("identity", BATCH * WIDTH * 4),
        ("cast:bf16", BATCH * WIDTH * 2),
        # 4 bits a value, and for each sample an fp16 scale and an fp16 offset
        ("quantise:4", BATCH * (WIDTH // 2 + 4)),
    ],
)
def test_bytes_follow_the_codec_both_ways(codec: str, payload: int) -> None:
    outcome = train(codec, codec)
    for to in ("stage 0", "stage 1"):
        extra = sent(outcome, to) - STEPS * payload
        # headers, and the schema once: under a tenth of a kilobyte a message
        assert 0 < extra < STEPS * 100 + 300
    assert outcome.losses[-1] < outcome.losses[0]


def test_each_direction_has_its_own() -> None:
    outcome = train("quantise:4", "cast:bf16")
    assert sent(outcome, "stage 1") < sent(outcome, "stage 0") / 2


@pytest.mark.parametrize("codec", ["delta,per=sample+quantise:8", "error_feedback+top_k:0.25"])
def test_codecs_with_a_state_learn(codec: str) -> None:
    outcome = train(codec, codec, steps=40)
    assert outcome.losses[-1] < 0.8 * outcome.losses[0]
    assert outcome.scores[-1]["loss"] < 0.9 * outcome.losses[0]


def test_the_same_seed_rounds_alike() -> None:
    first, second = train("quantise:2", "quantise:2"), train("quantise:2", "quantise:2")
    assert first.losses == second.losses


@pytest.mark.parametrize("codec", ["quantize:4", "quantise:99"])
def test_a_bad_codec_is_refused(codec: str) -> None:
    arguments: dict[str, Any] = {"forward": codec, "backward": "identity"}
    with pytest.raises(ConfigError, match=r"quantise|from 1 to 8"):
        train(**arguments)
