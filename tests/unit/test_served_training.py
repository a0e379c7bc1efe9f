"""Coded, predicted and measured exchanges in virtual time: exact settings, bytes, replays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from freewheel.errors import ConfigError
from freewheel.protocols import protocols
from freewheel.protocols.arrivals import from_row, to_row
from freewheel.simulate import Budget, Compute, Fault, LinkSpec, Simulation, Stragglers
from freewheel.simulate.link import HEADER_BYTES
from freewheel.simulate.replay import replay
from freewheel.simulate.result import Result
from freewheel.simulate.served_training import ServedTraining
from freewheel.simulate.training import Training, TrainingBatch

STEPS, SIZE, WORKERS = 12, 6, 3
#: Of the model below: 7 x 13 + 13 + 13 x 3 + 3 numbers of 4 bytes.
PARAMETERS = 4 * 146


def batches(rank: int) -> Iterator[TrainingBatch]:
    generator = torch.Generator().manual_seed(rank)
    while True:
        inputs = torch.randn(SIZE, 7, generator=generator)
        yield inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long(), SIZE


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, 3))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.5)


def run(
    protocol: dict[str, Any],
    workers: int = WORKERS,
    codec: dict[str, str] | None = None,
    faults: list[Fault] | None = None,
    make: Any = batches,
    step_s: float = 1.0,
) -> tuple[Result, ServedTraining]:
    settings = dict(protocol)
    made = protocols.create(settings.pop("name"), settings)
    work = fresh(protocol, workers, codec, make)
    pace = Compute(step_s, Stragglers(1, 4.0), jitter=0.3)
    link = LinkSpec(1.0, 10.0)
    return Simulation(made, work, workers, pace, link, faults or []).run(), work


def fresh(
    protocol: dict[str, Any],
    workers: int = WORKERS,
    codec: dict[str, str] | None = None,
    make: Any = batches,
) -> ServedTraining:
    settings = dict(protocol)
    made = protocols.create(settings.pop("name"), settings)
    return ServedTraining(
        model(),
        make,
        nn.CrossEntropyLoss(),
        sgd,
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5),
        Budget(STEPS, workers, shared=False),
        SIZE,
        local=made.pushes != "gradient",
        watch=made.watch,
        **(codec or {}),
    )


def total(result: Result) -> tuple[int, int]:
    return sum(result.bytes_sent.values()), sum(result.messages_sent.values())


def test_tolerance_0_is_fedbuff_of_one_bit_for_bit_in_parameters_and_bytes() -> None:
    one, exact = run({"name": "fedbuff", "k": 1, "rescale": "none"})
    other, same = run({"name": "dead_reckoning", "tolerance": 0.0, "rescale": "none", "every": 5})
    assert torch.equal(exact.snapshot(), same.snapshot())
    assert total(one) == total(other)
    assert one.version == other.version == WORKERS * STEPS


@pytest.mark.parametrize("every", [1, 4])
def test_theta_0_is_local_sgd_but_for_rounding_and_sends_no_more(every: int) -> None:
    one, exact = run({"name": "local_sgd", "k": every})
    other, same = run({"name": "fda", "theta": 0.0, "every": every})
    assert torch.allclose(exact.snapshot(), same.snapshot(), rtol=1e-5, atol=1e-6)
    assert total(one) == total(other)


@pytest.mark.parametrize(
    "protocol",
    [
        {"name": "fda", "theta": 0.0},
        {"name": "fda", "theta": 0.1},
        {"name": "dead_reckoning", "tolerance": 0.0},
        {"name": "dead_reckoning", "tolerance": 0.05},
        {"name": "dead_reckoning", "tolerance": 0.02, "predictor": "velocity", "every": 2},
    ],
    ids=str,
)
def test_one_worker_does_plain_training(protocol: dict[str, Any]) -> None:
    """Nobody else moves the server: what is held back at the end is all that may be missing."""
    result, work = run(protocol, workers=1)
    module = model()
    optimizer, stream = sgd(module.parameters()), batches(0)
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
    for _ in range(STEPS):
        inputs, targets, _ = next(stream)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimizer.step()
        rate.step()
    expected = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    found = work.server.packed(work.snapshot())
    moves = protocol.get("predictor") == "velocity"
    allowed = protocol["tolerance"] * float(expected.norm()) if moves else 1e-5
    assert float((found - expected).norm()) <= allowed
    if protocol.get("tolerance"):
        assert result.bytes_sent[-1] == HEADER_BYTES * result.messages_sent[-1], "nothing pulled"


@pytest.mark.parametrize(
    ("protocol", "codec"),
    [
        ({"name": "fda", "theta": 0.02}, {}),
        ({"name": "fda", "theta": 0.02, "estimate": "sketch", "every": 2}, {"push": "quantise:8"}),
        ({"name": "dead_reckoning", "tolerance": 0.02, "every": 3}, {}),
        ({"name": "dead_reckoning", "tolerance": 0.02, "predictor": "velocity"}, {}),
        (
            {"name": "dead_reckoning", "tolerance": 0.02, "predictor": "regression"},
            {"push": "error_feedback+top_k:0.2", "pull": "quantise:4"},
        ),
        ({"name": "ssp", "staleness": 1}, {"push": "quantise:4", "pull": "delta+quantise:8"}),
    ],
    ids=str,
)
def test_recorded_arrivals_give_the_same_parameters_bit_for_bit(
    protocol: dict[str, Any], codec: dict[str, str]
) -> None:
    """A run with stragglers, jitter, a death and a newcomer, from nothing but its arrivals."""
    result, work = run(
        protocol, codec=codec, faults=[Fault("death", 0, 6.3), Fault("join", 3, 4.1)]
    )
    assert result.num_folded > 5
    rows = json.loads(json.dumps([to_row(event) for event in result.arrivals]))
    again = fresh(protocol, codec=codec)
    settings = dict(protocol)
    made = protocols.create(settings.pop("name"), settings)
    replay([from_row(row) for row in rows], made, again)
    assert torch.equal(work.snapshot(), again.snapshot())


def test_bytes_of_fda_are_those_of_its_formula() -> None:
    """2 messages a report and 2 more an average; 2 P an average and 8 bytes a report."""
    result, _ = run({"name": "fda", "theta": 0.02})
    averages, reports = result.version - 1, WORKERS * STEPS  # the last steps end in a last push
    assert 2 < averages < STEPS
    num_messages = 2 * reports + 2 * WORKERS * averages + 2 * WORKERS
    payload = WORKERS * (averages * 2 + 1) * PARAMETERS + 8 * reports
    goodbyes = WORKERS
    found, messages = total(result)
    assert messages == num_messages + goodbyes
    assert found == payload + HEADER_BYTES * messages


def test_bytes_of_dead_reckoning_are_those_of_its_formula() -> None:
    """Half as many numbers on the way up with a codec of 16 bits; nothing where nothing is told."""
    protocol = {"name": "dead_reckoning", "tolerance": 0.03, "every": 4}
    result, _ = run(protocol, codec={"push": "cast:bf16", "pull": "cast:bf16"})
    pushes = result.num_folded
    up = sum(num for rank, num in result.bytes_sent.items() if rank >= 0)
    up_messages = sum(num for rank, num in result.messages_sent.items() if rank >= 0)
    assert up == pushes * PARAMETERS // 2 + HEADER_BYTES * up_messages
    down = result.bytes_sent[-1] - HEADER_BYTES * result.messages_sent[-1]
    told, rest = divmod(down, PARAMETERS // 2)
    assert rest == 0
    assert 0 < told <= pushes < WORKERS * STEPS


def steady(rank: int) -> Iterator[TrainingBatch]:
    while True:
        yield torch.ones(SIZE, 7), torch.zeros(SIZE), SIZE


class Drifts(nn.Module):
    """Its gradient is -1 everywhere: under SGD all workers move at one velocity."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((100,), 10.0))

    def forward(self, x: Tensor) -> Tensor:
        return -self.weight.sum() + 0 * x.sum()


def drift(predictor: Any) -> tuple[Result, Tensor]:
    protocol = {"tolerance": 0.01, "every": 1, "predictor": predictor}
    made = protocols.create("dead_reckoning", protocol)
    work = ServedTraining(
        Drifts(),
        steady,
        lambda output, targets: output,
        lambda parameters: torch.optim.SGD(parameters, lr=0.2),
        None,
        Budget(40, 2, shared=False),
        SIZE,
        local=True,
        watch=made.watch,
    )
    return Simulation(made, work, 2, Compute(1.0)).run(), work.snapshot()[:100]


def test_a_velocity_predicted_at_both_ends_saves_the_tensors_of_a_steady_drift() -> None:
    found = {}
    for name in ("static", "velocity"):
        spec = {"name": "velocity", "estimate": "last"} if name == "velocity" else "static"
        result, end = drift(spec)
        # both workers move by 0.2 a step for 40 steps: their mean is at 18
        assert torch.allclose(end, torch.full_like(end, 18.0), rtol=0.011)
        found[name] = sum(result.bytes_sent.values()) - HEADER_BYTES * sum(
            result.messages_sent.values()
        )
    assert found["velocity"] < found["static"] / 4


def test_codecs_of_a_virtual_run_are_refused_where_they_cannot_be_made() -> None:
    with pytest.raises(ConfigError, match="unknown codec 'int8'"):
        fresh({"name": "asp"}, codec={"push": "int8"})


def uneven(rank: int) -> Iterator[TrainingBatch]:
    """Every second batch of the last worker is empty."""
    for number, batch in enumerate(batches(rank)):
        yield (None, None, 0) if rank == WORKERS - 1 and number % 2 else batch


def test_a_step_without_samples_is_a_step_of_the_schedule() -> None:
    """Scenario 3: STEPS steps of each of three workers are STEPS steps of the schedule."""
    for name in ("bsp", "asp"):
        result, work = run({"name": name}, make=uneven)
        assert result.dropped == {"no samples": STEPS // 2}
        assert work.schedule.last_epoch == STEPS
        assert work.lr == pytest.approx(0.1 * 0.5 ** (STEPS // 7))


def poisoned(rank: int) -> Iterator[TrainingBatch]:
    for number, (inputs, targets, size) in enumerate(batches(rank)):
        bad = rank == 1 and number == 3
        yield (inputs * float("nan") if bad else inputs), targets, size


@pytest.mark.parametrize(
    "protocol",
    [
        {"name": "local_sgd", "k": 2},
        {"name": "fedbuff", "k": 2},
        {"name": "fda", "theta": 0.01},
        {"name": "dead_reckoning", "tolerance": 0.02},
    ],
    ids=str,
)
def test_scenario_15_a_worker_with_its_own_optimizer_skips_a_step_that_is_not_finite(
    protocol: dict[str, Any],
) -> None:
    result, work = run(protocol, make=poisoned)
    assert result.dropped == {"non-finite values": 1}
    assert bool(torch.isfinite(work.snapshot()).all())
    # its momentum is finite, too: the steps after it are folded
    mine = [e for e in result.arrivals if getattr(getattr(e, "push", None), "worker", 0) == 1]
    assert len(mine) > 2


def test_training_without_codecs_is_that_of_the_plain_class() -> None:
    plain = Training(
        model(),
        batches,
        nn.CrossEntropyLoss(),
        sgd,
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5),
        Budget(STEPS, WORKERS, shared=False),
        SIZE,
    )
    pace = Compute(1.0, Stragglers(1, 4.0), jitter=0.3)
    one = Simulation(protocols.create("asp"), plain, WORKERS, pace, LinkSpec(1.0, 10.0)).run()
    other, work = run({"name": "asp"})
    assert torch.equal(plain.snapshot(), work.snapshot())
    assert total(one) == total(other)
