"""The benchmark's own event loop and estimates, against plain PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from benchmarks.harness import RESULTS
from benchmarks.sharding import page
from benchmarks.sharding.gradients import dispersion, sketched
from benchmarks.sharding.virtual import HIDDEN, Regime, Runs, Seeds, batches, schedule, train
from freewheel.sharding.metrics import gradient_dispersion


def test_slow_workers_push_less_often_and_equal_ones_take_turns() -> None:
    equal = np.bincount(schedule(Regime(workers=8), 8000, seed=0), minlength=8)
    assert np.abs(equal - 1000).max() < 30
    unequal = np.bincount(schedule(Regime(workers=8, slow=2, factor=4.0), 6500, seed=0))
    # six workers at speed 1 and two at 1/4: 6500 / 6.5 each
    assert np.abs(unequal[2:] - 1000).max() < 30
    assert np.abs(unequal[:2] - 250).max() < 15


def test_every_sample_of_a_shard_is_used_once_an_epoch() -> None:
    shards = [np.arange(0, 8), np.arange(8, 12)]
    order = np.array([0, 1, 0, 1, 0, 0])
    found = batches(shards, order, Regime(workers=2, batch_size=4), seed=0)
    assert sorted(found[[0, 2]].ravel().tolist()) == list(range(8))
    assert sorted(found[[4, 5]].ravel().tolist()) == list(range(8))
    assert sorted(found[1].ravel().tolist()) == sorted(found[3].ravel().tolist()) == [8, 9, 10, 11]


@pytest.mark.parametrize("local_steps", [1, 3])
def test_many_runs_at_once_are_as_one_by_one_in_plain_pytorch(local_steps: int) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(48, 5)).astype(np.float32)
    labels = np.arange(48) % 3
    regime = Regime(workers=3, batch_size=4, local_steps=local_steps)
    shards = [[np.arange(rank, 48, 3) for rank in range(3)] for _ in range(2)]
    seeds = [Seeds(0, 1, 2), Seeds(3, 4, 5)]
    outcome = train(inputs, labels, inputs, labels, shards, seeds, regime, epochs=2)
    for run, (mine, one) in enumerate(zip(shards, seeds, strict=True)):
        updates = 2 * -(-48 // (4 * local_steps))
        order = schedule(regime, updates, one.times)
        plan = batches(mine, order, regime, one.order)
        start = Runs(5, 3, 3, [one.start]).server
        server = [value[0].clone() for value in start]
        held = [[value.clone() for value in server] for _ in range(3)]
        for update, worker in enumerate(order):
            lr = 0.1 * (
                1.0 if update < updates // 2 else 0.1 if update < 3 * updates // 4 else 0.01
            )
            local = [value.clone().requires_grad_() for value in held[worker]]
            for rows in plan[update]:
                hidden = torch.relu(torch.from_numpy(inputs[rows]) @ local[0] + local[1])
                loss = functional.cross_entropy(
                    hidden @ local[2] + local[3], torch.from_numpy(labels[rows])
                )
                grads = torch.autograd.grad(loss, local)
                local = [
                    (value - lr * grad).detach().requires_grad_()
                    for value, grad in zip(local, grads, strict=True)
                ]
            for place, value in enumerate(local):
                server[place] = server[place] + value.detach() - held[worker][place]
            held[worker] = [value.clone() for value in server]
        assert server[0].shape == (5, HIDDEN)
        hidden = torch.relu(torch.from_numpy(inputs) @ server[0] + server[1])
        loss = functional.cross_entropy(hidden @ server[2] + server[3], torch.from_numpy(labels))
        assert outcome.final["train_loss"][run] == pytest.approx(loss.item(), rel=1e-4)


def test_projected_dispersion_estimates_the_exact_one(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(60, 6)).astype(np.float32), np.arange(60) % 3
    shards = [np.arange(0, 30), np.r_[np.arange(25, 60)]]  # five samples stand in both
    exact = gradient_dispersion(model, functional.cross_entropy, inputs, labels, [shards])[0].mean
    found = [
        dispersion(
            sketched(model, inputs, labels, 512, tmp_path / f"{seed}.npy", seed=seed), shards
        )
        for seed in range(20)
    ]
    assert np.mean(found) == pytest.approx(exact, rel=4 * np.sqrt(2 / 512 / 20) + 0.02)


@pytest.mark.skipif(not (RESULTS / "sharding.json").exists(), reason="the benchmark has not run")
def test_the_page_holds_the_tables_of_the_results_file() -> None:
    assert page.main(["--check"]) == 0
