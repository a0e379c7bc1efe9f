"""Replay: exact exchanges, and local steps on kept boundary tensors between them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from freewheel.errors import ConfigError
from freewheel.runtime.pieces import Given
from in_threads import Outcome, run_pipeline

BATCH = 8


def make_model() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)]


def make_data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(BATCH * 12, 6, generator=generator)
    return x, x[:, :3].argmax(1)


def train(
    protocol: dict[str, Any], steps: int = 48, model: Any = make_model, **sections: Any
) -> Outcome:
    given = Given(
        model,
        lambda: (make_data(), make_data()),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.Adam(p, lr=0.02),
    )
    sections = {"layout": {"stages": 2, "micro_batches": 2, "cuts": ["1"]}, **sections}
    return run_pipeline(
        given, data={"batch_size": BATCH}, train={"steps": steps}, protocol=protocol, **sections
    )


def sent(outcome: Outcome) -> int:
    return sum(sum(totals["bytes_to"].values()) for totals in outcome.totals)


def test_every_exchange_and_no_repeat_is_vanilla_bit_for_bit() -> None:
    replay, vanilla = (
        train({"name": "replay", "every": 1, "repeats": 0}),
        train({"name": "vanilla"}),
    )
    assert replay.losses == vanilla.losses
    for name, value in vanilla.state.items():
        assert torch.equal(replay.state[name], value), name


@pytest.mark.parametrize("every", [2, 4])
def test_bytes_fall_with_every(every: int) -> None:
    replay, vanilla = train({"name": "replay", "every": every}), train({"name": "vanilla"})
    exchanges = len(replay.losses)
    # step 1, then one in `every`; and the last step of the run is an exchange
    assert exchanges == pytest.approx(48 / every, abs=2)
    assert sent(replay) / sent(vanilla) == pytest.approx(exchanges / 48, rel=0.03)


def test_replaying_wins_back_what_skipping_loses() -> None:
    skipped = train({"name": "replay", "every": 4, "repeats": 0})
    replayed = train({"name": "replay", "every": 4})
    assert replayed.scores[-1]["loss"] < skipped.scores[-1]["loss"]


def test_one_local_step_is_that_of_the_kept_exchange() -> None:
    """Two stages, one exchange, one repeat: the hand-written computation."""
    outcome = train(
        {"name": "replay", "every": 2, "window": 1, "similarity": -1.0},
        steps=3,
        layout={"stages": 2, "micro_batches": 1, "cuts": ["1"]},
    )
    from freewheel.streams.sampler import Sampler

    first, tanh, last = make_model()
    x, y = make_data()
    upstream = torch.optim.Adam(first.parameters(), lr=0.02)
    downstream = torch.optim.Adam(last.parameters(), lr=0.02)
    sampler = Sampler(len(x), BATCH, seed=0)

    def exchange(indices: Tensor) -> tuple[Tensor, Tensor]:
        h = tanh(first(x[indices]))
        leaf = h.detach().requires_grad_()
        upstream.zero_grad()
        downstream.zero_grad()
        nn.functional.cross_entropy(last(leaf), y[indices]).backward()
        assert leaf.grad is not None
        h.backward(leaf.grad)
        upstream.step()
        downstream.step()
        return h.detach(), leaf.grad

    kept = sampler.next().indices
    h, gradient = exchange(kept)
    upstream.zero_grad()
    now = tanh(first(x[kept]))
    weight = torch.nn.functional.cosine_similarity(now.detach(), h, dim=1).clamp_min(0)
    now.backward(gradient * weight[:, None])
    upstream.step()
    downstream.zero_grad()
    nn.functional.cross_entropy(last(h), y[kept]).backward()
    downstream.step()
    sampler.next()  # the batch that was not used
    exchange(sampler.next().indices)
    for name, layer in (("0", first), ("2", last)):
        for key, value in layer.state_dict().items():
            assert torch.allclose(outcome.state[f"{name}.{key}"], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("codec", ["quantise:4", "error_feedback+top_k:0.5"])
def test_replay_composes_with_codecs(codec: str) -> None:
    outcome = train({"name": "replay", "every": 4}, codec={"forward": codec, "backward": codec})
    assert outcome.scores[-1]["loss"] < 1.0


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"every": 0}, "every must be >= 1"),
        ({"repeats": -1}, "repeats must be >= 0"),
        ({"window": 0}, "window must be >= 1"),
        ({"similarity": 2.0}, "similarity is a cosine"),
    ],
)
def test_bad_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        train({"name": "replay", **settings})


def test_a_parameter_on_two_stages_is_refused_by_name() -> None:
    def tied() -> list[nn.Module]:
        first, last = nn.Linear(6, 6), nn.Linear(6, 6)
        last.weight = first.weight
        return [first, nn.Tanh(), last]

    with pytest.raises(ConfigError, match="weight"):
        train({"name": "replay", "every": 2}, model=tied)


def test_a_drift_empties_what_is_kept() -> None:
    """The data turns into other data half way: the guard doubts, and both stages forget."""

    def turning() -> tuple[Tensor, Tensor]:
        x, y = make_data()
        later = torch.arange(len(x)) >= len(x) // 2
        return x, torch.where(later, (y + 1) % 3, y)

    given = Given(
        make_model,
        lambda: (turning(), turning()),
        nn.CrossEntropyLoss(),
        lambda p: torch.optim.Adam(p, lr=0.05),
    )
    guard = {"name": "loss_guard", "min_losses": 2, "sigmas": 3.0}
    outcome = run_pipeline(
        given,
        layout={"stages": 2, "micro_batches": 1, "cuts": ["1"]},
        data={"batch_size": 4, "shuffle": False},
        train={"steps": 24},
        protocol={"name": "replay", "every": 2, "window": 8, "guard": guard},
    )
    told = [m for m in outcome.told if m.kind == "event" and m.meta["event"] == "flush"]
    assert {m.sender for m in told} == {"stage 0", "stage 1"}
    steps = {m.meta["step"] for m in told}
    # the second half begins after 12 batches of 4
    assert min(step for step in steps if step > 12) <= 15
    kept = [role.rounds.replaying.num_kept for role in outcome.roles]
    last = max(steps)
    since = sum(row["step"] >= last for row in outcome.rows if row["process"] == "stage 1")
    assert kept == [min(8, since)] * 2


def test_a_wish_for_a_monitor_is_the_guard_of_replay() -> None:
    outcome = train({"name": "replay", "every": 4}, monitor={"name": "loss_guard", "min_losses": 2})
    verdicts = [m for m in outcome.told if m.kind == "event" and m.meta["event"] == "verdict"]
    assert len(verdicts) == len(outcome.losses)
    with pytest.raises(ConfigError, match="loss_guard"):
        train({"name": "replay", "every": 4}, monitor={"name": "loss_gard"})
