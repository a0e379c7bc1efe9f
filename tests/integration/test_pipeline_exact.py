"""A pipeline computes what one process computes on the same micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from freewheel.runtime.pieces import Given
from in_threads import Outcome, run_pipeline
from plain import train_plain

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=3e-3),
}
LOSS = nn.CrossEntropyLoss()


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(12, 16),
        nn.BatchNorm1d(16),
        nn.ReLU(inplace=True),
        nn.Linear(16, 16),
        nn.BatchNorm1d(16),
        nn.Tanh(),
        nn.Linear(16, 8),
        nn.Linear(8, 5),
    )


def make_data(num_samples: int = 96) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(num_samples, 12, generator=generator)
    return x, torch.randint(0, 5, (num_samples,), generator=generator)


def run(
    stages: int,
    optimizer: str = "adam",
    *,
    data: tuple[Tensor, Tensor] | None = None,
    model: Callable[[], Any] = make_model,
    schedule: str = "1f1b",
    micro_batches: int = 4,
    batch_size: int = 24,
    **train: Any,
) -> Outcome:
    data = data or make_data()
    given = Given(model, lambda: (data, data), LOSS, OPTIMIZERS[optimizer])
    return run_pipeline(
        given,
        layout={"stages": stages, "micro_batches": micro_batches, "schedule": schedule},
        data={"batch_size": batch_size},
        train={"steps": 20, **train},
    )


def plain(optimizer: str = "adam", data: tuple[Tensor, Tensor] | None = None, **how: Any) -> Any:
    model = how.pop("model", make_model)()
    x, y = data or make_data()
    how = {"steps": 20, "batch_size": 24, "micro_batches": 4, **how}
    losses = train_plain(model, x, y, LOSS, OPTIMIZERS[optimizer](model.parameters()), **how)
    return model.state_dict(), losses


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], rtol: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        scale = float(value.double().abs().max())
        difference = float((found[name].double() - value.double()).abs().max())
        assert difference <= rtol * scale, f"{name} differs by {difference:g} of {scale:g}"


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_parameters_and_buffers_equal_one_process(
    stages: int, optimizer: str, schedule: str
) -> None:
    expected, losses = plain(optimizer)
    outcome = run(stages, optimizer, schedule=schedule)
    assert_close(outcome.state, expected, rtol=1e-6)
    assert outcome.losses == pytest.approx(losses, rel=1e-5)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_one_stage_is_bit_identical(optimizer: str) -> None:
    expected, _ = plain(optimizer)
    outcome = run(1, optimizer)
    for name, value in expected.items():
        assert torch.equal(outcome.state[name], value), name


@pytest.mark.parametrize(("num_samples", "batch_size"), [(21, 8), (17, 8)])
def test_scenario_1_the_last_batch_is_smaller(num_samples: int, batch_size: int) -> None:
    # 8, 8, 5 and 8, 8, 1 over two stages and two micro-batches
    data = make_data(num_samples)

    def no_batchnorm() -> nn.Sequential:  # which refuses a batch of one
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 5))

    how: dict[str, Any] = {"batch_size": batch_size, "micro_batches": 2, "steps": 9}
    expected, _ = plain("adam", data, model=no_batchnorm, **how)
    outcome = run(2, "adam", data=data, model=no_batchnorm, **how)
    assert_close(outcome.state, expected, rtol=1e-6)
    assert {row["samples"] for row in outcome.rows} == {8, num_samples - 16}


def test_scenario_4_micro_batches_of_unequal_size_and_accumulation() -> None:
    # batches of 10 in micro-batches of 4, 4 and 2, three batches a step; 96 = 9 x 10 + 6
    how: dict[str, Any] = {"batch_size": 10, "micro_batches": 3, "accumulate": 3}
    expected, _ = plain("momentum", **how)
    outcome = run(2, "momentum", **how)
    assert_close(outcome.state, expected, rtol=1e-6)


def test_clipping_is_by_the_norm_of_the_whole_model() -> None:
    expected, _ = plain("momentum", clip_norm=0.05)
    outcome = run(3, "momentum", clip_norm=0.05)
    assert_close(outcome.state, expected, rtol=1e-6)
    unclipped, _ = plain("momentum")
    assert any(not torch.allclose(unclipped[name], expected[name]) for name in expected)


def test_the_schedule_moves_on_every_stage() -> None:
    def cosine(optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)

    model, (x, y) = make_model(), make_data()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    train_plain(model, x, y, LOSS, optimizer, 20, 24, 4, schedule=cosine(optimizer))
    given = Given(make_model, lambda: ((x, y), (x, y)), LOSS, OPTIMIZERS["adam"], cosine)
    outcome = run_pipeline(
        given, layout={"stages": 2}, data={"batch_size": 24}, train={"steps": 20}
    )
    assert_close(outcome.state, model.state_dict(), rtol=1e-6)
    assert outcome.rows[0]["lr"] == 3e-3
    assert outcome.rows[-1]["lr"] < 1e-4
