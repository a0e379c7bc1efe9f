"""What servers and workers compute, against plain PyTorch in one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import factories
from freewheel.config import ScheduleSection
from freewheel.protocols import protocols
from freewheel.runtime.pieces import Given
from freewheel.runtime.servers.arrivals_file import read_arrivals
from freewheel.runtime.training import make_schedule
from freewheel.simulate import Budget
from freewheel.simulate.replay import replay
from freewheel.simulate.training import Training
from freewheel.streams.sampler import Sampler
from plain import train_plain
from served import Outcome, run_served

GIVEN = Given(model=factories.small_model, data=factories.small_data)
SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
ADAM = {"name": "adam", "lr": 0.01}


def optimizer_of(section: dict[str, Any], parameters: Any) -> torch.optim.Optimizer:
    settings = {key: value for key, value in section.items() if key != "name"}
    return {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[section["name"]](
        parameters, **settings
    )


def reference(
    outcome: Outcome, optimizer: dict[str, Any], schedule: dict[str, Any], **how: Any
) -> dict[str, Tensor]:
    (x, y), _ = factories.small_data()
    model = factories.small_model()
    made = optimizer_of(optimizer, model.parameters())
    steps = outcome.roles["worker 0"].total_steps
    moves = make_schedule(ScheduleSection(**schedule), made, steps)
    train_plain(
        model, x, y, nn.CrossEntropyLoss(), made, steps, batch_size=8, schedule=moves, **how
    )
    return model.state_dict()


@pytest.mark.parametrize(
    "protocol",
    [
        {"name": "bsp"},
        {"name": "ssp", "staleness": 2},
        {"name": "asp"},
        {"name": "bounded_delay", "tau": 3},
        {"name": "dssp"},
        {"name": "gba"},
        {"name": "local_sgd", "k": 3},
    ],
    ids=lambda value: value["name"],
)
@pytest.mark.parametrize(
    ("optimizer", "servers", "schedule", "clip"),
    [
        (SGD, 1, {"name": "cosine", "warmup": 2}, None),
        (ADAM, 1, {"name": "constant"}, 0.5),
        (ADAM, 3, {"name": "linear"}, None),
    ],
    ids=["sgd", "adam, clipped", "adam on 3 servers"],
)
def test_one_worker_is_plain_pytorch_bit_for_bit(
    protocol: dict[str, Any],
    optimizer: dict[str, Any],
    servers: int,
    schedule: dict[str, Any],
    clip: float | None,
    tmp_path: Path,
) -> None:
    outcome = run_served(
        GIVEN,
        tmp_path,
        data={"batch_size": 8},
        train={"epochs": 2, "clip_norm": clip},
        layout={"workers": 1, "servers": servers},
        optimizer=optimizer,
        schedule=schedule,
        protocol=protocol,
    )
    for name, value in reference(outcome, optimizer, schedule, clip_norm=clip).items():
        assert torch.equal(outcome.state[name], value), name


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize(("workers", "accumulate"), [(2, 1), (3, 1), (2, 3)])
def test_scenarios_2_to_4_bsp_is_accumulation_over_all_workers(
    servers: int, clip: float | None, workers: int, accumulate: int, tmp_path: Path
) -> None:
    outcome = run_served(
        GIVEN,
        tmp_path,
        data={"batch_size": 8},
        train={"epochs": 3, "clip_norm": clip, "accumulate": accumulate},
        layout={"workers": workers, "servers": servers},
        optimizer=SGD,
        schedule={"name": "cosine"},
    )
    expected = reference(
        outcome, SGD, {"name": "cosine"}, clip_norm=clip, world_size=workers, accumulate=accumulate
    )
    for name, value in expected.items():
        assert torch.allclose(outcome.state[name], value, rtol=1e-6, atol=1e-6), name
    assert sum(row["samples"] for row in outcome.rows) == 3 * 40, "every sample once an epoch"


def batches_of(rank: int, workers: int, data: Any) -> Iterator[tuple[Any, Any, int]]:
    (x, y), _ = data
    sampler = Sampler(len(x), 8, 0, rank, workers)
    while True:
        indices = sampler.next().indices
        yield x[indices], y[indices], len(indices)


@pytest.mark.parametrize(
    "protocol",
    [
        {"name": "asp", "rescale": "staleness_aware"},
        {"name": "ssp", "staleness": 1},
        {"name": "fedbuff", "k": 2, "local_steps": 2},
        {"name": "easgd", "alpha": 0.3, "period": 2},
        {"name": "backup_workers", "b": 1},
    ],
    ids=lambda value: value["name"],
)
@pytest.mark.parametrize("servers", [1, 2])
def test_scenario_19_recorded_arrivals_replay_bit_for_bit(
    protocol: dict[str, Any], servers: int, tmp_path: Path
) -> None:
    """Adam on the servers under asynchronous pushers is the same as one serial order."""
    data = factories.small_data(48)  # no worker has an empty batch in any round
    given = Given(model=factories.small_model, data=lambda: data)
    outcome = run_served(
        given,
        tmp_path,
        data={"batch_size": 8},
        train={"steps": 12},
        layout={"workers": 3, "servers": servers},
        optimizer=ADAM,
        protocol=protocol,
        schedule={"name": "linear"},
    )
    name, settings = protocol["name"], {k: v for k, v in protocol.items() if k != "name"}
    made = protocols.create(name, settings)
    workload = Training(
        factories.small_model(),
        lambda rank: batches_of(rank, 3, data),
        nn.CrossEntropyLoss(),
        lambda parameters: optimizer_of(ADAM, parameters),
        lambda optimizer: make_schedule(ScheduleSection(name="linear"), optimizer, 12),
        Budget(12, 3, shared=False),
        8,
        local=made.pushes != "gradient",
    )
    replay(read_arrivals(tmp_path), made, workload)
    for key, value in workload.trained().state_dict().items():
        assert torch.equal(outcome.state[key], value), key
    folded = sum(notes["folded"] for notes in outcome.served["workers"].values())
    dropped = sum(sum(n["dropped"].values()) for n in outcome.served["workers"].values())
    assert folded + dropped > 0


class Counts(nn.Module):
    """Its gradient is -1 everywhere, so that SGD with rate 1 counts the updates."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(500))
        self.b = nn.Parameter(torch.zeros(300))

    def forward(self, x: Tensor) -> Tensor:
        return -(self.a.sum() + self.b.sum()) + 0 * x.sum()


def first(output: Tensor, targets: Tensor) -> Tensor:
    return output


@pytest.mark.parametrize("name", ["asp", "ssp", "bounded_delay"])
def test_scenario_19_a_pull_is_one_version_over_all_servers(name: str, tmp_path: Path) -> None:
    seen: list[tuple[float, float]] = []

    def change(who: str, role: Any) -> None:
        if who.startswith("worker"):
            train = role._train

            def watched(step: int, batches: Any) -> Any:
                values = torch.cat([p.detach() for p in role.module.parameters()])
                seen.append((float(values.min()), float(values.max())))
                return train(step, batches)

            role._train = watched

    outcome = run_served(
        Given(model=Counts, data=lambda: factories.small_data(48), loss=first),
        tmp_path,
        data={"batch_size": 8},
        train={"steps": 30},
        layout={"workers": 3, "servers": 3},
        optimizer={"name": "sgd", "lr": 1.0},
        protocol={"name": name},
        eval={"metrics": []},
        change=change,
    )
    assert len(seen) == 90
    for low, high in seen:
        assert low == high, "parts of two versions"
    assert outcome.served["version"] == 90
    assert all(bool((value == 90).all()) for value in outcome.state.values())


def test_per_server_consistency_names_the_vector_of_versions(tmp_path: Path) -> None:
    outcome = run_served(
        Given(model=Counts, data=lambda: factories.small_data(48), loss=first),
        tmp_path,
        data={"batch_size": 8},
        train={"steps": 20},
        layout={"workers": 2, "servers": 2, "consistency": "per_server"},
        optimizer={"name": "sgd", "lr": 1.0},
        protocol={"name": "asp"},
        eval={"metrics": []},
    )
    assert all(bool((value == 40).all()) for value in outcome.state.values())
    for row in outcome.rows:
        assert len(row["versions"]) == 2
    assert (tmp_path / "arrivals-1.jsonl").exists(), "each server has an order of its own"
