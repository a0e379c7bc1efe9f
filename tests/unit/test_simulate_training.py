"""Real gradients in virtual time: equal to plain PyTorch, and to their own replay."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from freewheel.errors import ConfigError, DataError, ModelError
from freewheel.protocols import protocols
from freewheel.protocols.arrivals import from_row, to_row
from freewheel.simulate import Budget, Compute, Fault, LinkSpec, Simulation, Stragglers
from freewheel.simulate.replay import replay
from freewheel.simulate.training import Training, TrainingBatch

STEPS, SIZE = 20, 6

EXACT_ALONE = ["bsp", "ssp", "dssp", "asp", "bounded_delay"]

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-3),
}


def batches(rank: int) -> Iterator[TrainingBatch]:
    generator = torch.Generator().manual_seed(rank)
    while True:
        inputs = torch.randn(SIZE, 7, generator=generator)
        yield inputs, (inputs.sum(1) > 0).long() + (inputs[:, 0] > 1).long(), SIZE


def model(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(13) if norm else nn.Tanh()
    module = nn.Sequential(nn.Linear(7, 13), middle, nn.Linear(13, 3))
    module.register_parameter("unused", nn.Parameter(torch.ones(5)))
    return module


def schedule(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.5)


def training(name: str, optimizer: str, workers: int, norm: bool = False, **more: Any) -> Training:
    return Training(
        model(norm),
        batches,
        nn.CrossEntropyLoss(),
        OPTIMIZERS[optimizer],
        schedule,
        Budget(STEPS, workers),
        SIZE,
        local=protocols.create(name).pushes != "gradient",
        **more,
    )


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def plain(optimizer_name: str, norm: bool = False, clip_norm: float | None = None) -> nn.Module:
    module = model(norm)
    optimizer = OPTIMIZERS[optimizer_name](module.parameters())
    rate, stream = schedule(optimizer), batches(0)
    for _ in range(STEPS):
        inputs, targets, _ = next(stream)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        optimizer.step()
        rate.step()
    return module


def assert_bit_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "name",
    [
        "bsp",
        "ssp",
        "asp",
        "bounded_delay",
        "dssp",
        "backup_workers",
        "gba",
        "all_reduce",
        "local_sgd",
    ],
)
def test_one_worker_is_plain_pytorch_bit_for_bit(name: str, optimizer: str) -> None:
    work = training(name, optimizer, 1, norm=True)
    Simulation(protocols.create(name), work, 1, link=LinkSpec(10.0, 1.0)).run()
    assert_bit_equal(state(work.trained()), state(plain(optimizer, norm=True)))


def test_clipping_means_what_it_means_in_pytorch() -> None:
    work = training("bsp", "sgd", 1, clip_norm=0.1)
    Simulation(protocols.create("bsp"), work, 1).run()
    assert_bit_equal(state(work.trained()), state(plain("sgd", clip_norm=0.1)))


def test_bsp_of_three_is_accumulation_over_their_batches() -> None:
    work = training("bsp", "sgd", 3)
    Simulation(protocols.create("bsp"), work, 3, Compute(1.0, Stragglers(1, 4.0))).run()
    module = model()
    optimizer = OPTIMIZERS["sgd"](module.parameters())
    rate, streams = schedule(optimizer), [batches(rank) for rank in range(3)]
    for _ in range(STEPS):
        optimizer.zero_grad()
        for stream in streams:
            inputs, targets, _ = next(stream)
            (nn.functional.cross_entropy(module(inputs), targets) / 3).backward()
        optimizer.step()
        rate.step()
    for name, value in state(work.trained()).items():
        assert torch.allclose(value, module.state_dict()[name], rtol=1e-5, atol=1e-7), name


def test_local_sgd_is_the_mean_of_workers_trained_apart() -> None:
    work = training("local_sgd", "sgd", 2)
    work.budget.steps = 5
    Simulation(protocols.create("local_sgd", {"k": 5}), work, 2).run()
    apart = []
    for rank in range(2):
        module = model()
        optimizer, stream = OPTIMIZERS["sgd"](module.parameters()), batches(rank)
        for _ in range(5):
            inputs, targets, _ = next(stream)
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(inputs), targets).backward()
            optimizer.step()
        apart.append(state(module))
    for name, value in state(work.trained()).items():
        mean = (apart[0][name] + apart[1][name]) / 2
        assert torch.allclose(value, mean, rtol=1e-6, atol=1e-7), name


def test_a_stale_gradient_is_taken_where_it_was_pulled() -> None:
    """Two equal workers under asp, one step each: both gradients are those of the initial model."""
    work = training("asp", "sgd", 2)
    work.budget.steps = 1
    Simulation(protocols.create("asp"), work, 2).run()
    module = model()
    optimizer = OPTIMIZERS["sgd"](module.parameters())
    gradients = []
    for rank in range(2):
        inputs, targets, _ = next(batches(rank))
        module.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        gradients.append([None if p.grad is None else p.grad.clone() for p in module.parameters()])
    for gradient in gradients:
        for parameter, grad in zip(module.parameters(), gradient, strict=True):
            parameter.grad = grad
        optimizer.step()
    assert_bit_equal(state(work.trained()), state(module))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("asp", {"rescale": "dynsgd"}),
        ("ssp", {"staleness": 2}),
        ("bsp", {}),
        ("backup_workers", {"b": 1}),
        ("fedbuff", {"k": 3, "local_steps": 2}),
        ("easgd", {"alpha": 0.2, "period": 3}),
        ("local_sgd", {"k": 3}),
        ("gba", {"tolerance": 1}),
        ("bounded_delay", {"tau": 1}),
    ],
)
def test_recorded_arrivals_give_the_same_parameters_bit_for_bit(
    name: str, settings: dict[str, Any]
) -> None:
    """A run with stragglers, jitter, a death and a newcomer, from nothing but its arrivals."""
    work = training(name, "adam", 3, norm=True)
    simulation = Simulation(
        protocols.create(name, settings),
        work,
        3,
        Compute(1.0, Stragglers(1, 4.0), jitter=0.3),
        LinkSpec(1.0, 10.0),
        [Fault("death", 0, 6.3), Fault("join", 3, 4.1)],
    )
    result = simulation.run()
    assert result.num_folded > 5
    rows = json.loads(json.dumps([to_row(event) for event in result.arrivals]))
    again = training(name, "adam", 3, norm=True)
    replay([from_row(row) for row in rows], protocols.create(name, settings), again)
    for key, value in state(work.server.module).items():
        if "running" not in key and "num_batches" not in key:
            assert torch.equal(value, state(again.server.module)[key]), key


def test_another_order_of_arrivals_gives_other_parameters() -> None:
    """The replay test could not fail if order did not matter."""

    def trained(seed: int) -> Tensor:
        work = training("asp", "sgd", 3)
        pace = Compute(1.0, jitter=0.5, seed=seed)
        Simulation(protocols.create("asp"), work, 3, pace).run()
        return work.snapshot()

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_a_record_of_another_run_is_refused() -> None:
    work = training("asp", "sgd", 2)
    result = Simulation(protocols.create("asp"), work, 2).run()
    with pytest.raises(DataError, match="must be those of the recorded run"):
        replay(result.arrivals, protocols.create("local_sgd"), training("local_sgd", "sgd", 2))
    with pytest.raises(DataError, match="has not joined"):
        replay(result.arrivals[1:], protocols.create("asp"), training("asp", "sgd", 2))
    with pytest.raises(ConfigError, match="no server"):
        replay([], protocols.create("all_reduce"), work)


def test_a_nan_of_one_worker_is_dropped_and_the_model_stays_finite() -> None:
    """Scenario 15."""

    def poisoned(rank: int) -> Iterator[TrainingBatch]:
        for number, (inputs, targets, size) in enumerate(batches(rank)):
            bad = rank == 1 and number == 3
            yield (inputs * float("nan") if bad else inputs), targets, size

    for name in ("asp", "bsp", "all_reduce"):
        work = training(name, "adam", 2)
        work._make_batches = poisoned
        result = Simulation(protocols.create(name), work, 2).run()
        assert result.dropped == {"non-finite values": 1}
        assert all(bool(torch.isfinite(value).all()) for value in state(work.trained()).values())


def test_batchnorm_buffers_are_the_workers_mean_and_counts_stay_integers() -> None:
    """Scenario 11."""
    work = training("bsp", "sgd", 2, norm=True)
    Simulation(protocols.create("bsp"), work, 2).run()
    counted = work.trained().state_dict()["1.num_batches_tracked"]
    assert counted.dtype == torch.int64
    assert int(counted) == STEPS


def test_a_model_that_cannot_lie_flat_is_refused() -> None:
    frozen = nn.Linear(2, 2).requires_grad_(False)
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    for module, said in ((frozen, "no trainable parameters"), (mixed, "one dtype")):
        with pytest.raises(ModelError, match=said):
            Training(
                copy.deepcopy(module),
                batches,
                nn.MSELoss(),
                OPTIMIZERS["sgd"],
                None,
                Budget(1, 1),
                SIZE,
            )
