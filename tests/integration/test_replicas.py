"""Replicas under all-reduce compute what one process computes over the same batches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import factories
import freewheel
from plain import train_plain


def train(tmp_path: Path, model: Callable[[], Any], num_samples: int, **how: Any) -> Any:
    return freewheel.train(
        model,
        quiet=True,
        run={"dir": str(tmp_path), "seed": how.get("seed", 0)},
        data={
            "factory": "factories:small_data",
            "num_samples": num_samples,
            "batch_size": how["batch_size"],
        },
        optimizer=None,
        config={"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}},
        layout={"kind": "replicas", "workers": how["workers"]},
        train=how["train"],
    )


def expected(
    model: nn.Module, num_samples: int, workers: int, batch_size: int, steps: int, accumulate: int
) -> dict[str, torch.Tensor]:
    (x, y), _ = factories.small_data(num_samples)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss = nn.CrossEntropyLoss()
    train_plain(
        model, x, y, loss, optimizer, steps, batch_size, accumulate=accumulate, world_size=workers
    )
    return model.state_dict()


@pytest.mark.parametrize(
    ("workers", "num_samples", "batch_size", "accumulate"),
    [
        (2, 40, 8, 1),  # scenario 2: 5 batches, 3 for one replica and 2 for the other
        (3, 13, 4, 1),  # scenarios 3 and 4: batches of 4, 4, 4 and then 1, 0, 0
        (2, 25, 4, 3),  # accumulation of 3 over uneven shards
    ],
)
def test_scenarios_2_to_4_equal_one_process(
    tmp_path: Path, workers: int, num_samples: int, batch_size: int, accumulate: int
) -> None:
    result = train(
        tmp_path,
        factories.small_model,
        num_samples,
        workers=workers,
        batch_size=batch_size,
        train={"epochs": 3, "accumulate": accumulate},
    )
    steps = result.summary["steps"]
    rounds = -(-num_samples // (workers * batch_size))
    assert steps == 3 * -(-rounds // accumulate)
    assert result.summary["samples"] == 3 * num_samples, "every sample once an epoch"
    reference = expected(
        factories.small_model(), num_samples, workers, batch_size, steps, accumulate
    )
    for name, value in result.state_dict().items():
        assert torch.allclose(value, reference[name], rtol=1e-6, atol=1e-7), name


def test_scenarios_9_and_10_unused_parameters_and_strided_gradients(tmp_path: Path) -> None:
    result = train(
        tmp_path, factories.strided_model, 24, workers=2, batch_size=4, train={"epochs": 2}
    )
    reference = expected(factories.strided_model(), 24, 2, 4, 6, 1)
    found = result.state_dict()
    for name, value in reference.items():
        assert torch.allclose(found[name], value, rtol=1e-6, atol=1e-7), name
    assert torch.equal(found["0.never"], torch.ones(2)), "nobody used it: it has no gradient"


def test_bytes_are_those_of_a_ring_all_reduce(tmp_path: Path) -> None:
    result = train(tmp_path, factories.small_model, 32, workers=2, batch_size=8, train={"steps": 2})
    parameters = sum(p.numel() for p in factories.small_model().parameters())
    flags = 6 + 1  # one number a tensor, whether anybody used it; and one for a wish to stop
    # 2 (N - 1) / N of the vector from each of N = 2 replicas, in each of 2 steps
    assert result.summary["bytes_sent"] == 2 * 2 * (parameters + flags) * 4
