"""The peers compute what plain PyTorch computes, so that only their time is compared."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.peers.models import NUM_SAMPLES, build, samples
from benchmarks.peers.rank import batches
from freewheel.models.zoo import lenet, mlp

ROOT = Path(__file__).parents[2]
SIZES = ["--warmup", "2", "--steps", "3", "--batch-size", "16", "--lr", "0.1"]


def run(peer: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """Run two ranks to their end; return the JSON line of each."""
    command = [sys.executable, "-m", f"benchmarks.peers.{peer}", "--store", str(folder / "store")]
    processes = [
        subprocess.Popen(
            [*command, "--world-size", "2", "--rank", str(rank), *SIZES, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=100) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(out) for out, _ in outputs]


def plain(model_name: str, batch_size: int) -> list[list[float]]:
    """Return the losses of both halves of each batch, in plain PyTorch in one process."""
    model = nn.Sequential(*build(model_name, 0))
    images, labels = samples(NUM_SAMPLES, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _, indices in zip(range(5), batches(NUM_SAMPLES, batch_size, 0), strict=False):
        optimizer.zero_grad()
        halves = [
            nn.functional.cross_entropy(model(images[part]), labels[part])
            for part in (indices[0::2], indices[1::2])
        ]
        (sum(halves) / 2).backward()
        optimizer.step()
        losses.append([float(half.detach()) for half in halves])
    return losses


@pytest.mark.parametrize(
    ("model", "schedule", "micro_batches"), [("mlp", "1f1b", 4), ("lenet", "gpipe", 2)]
)
def test_pipelining_is_plain_pytorch(
    tmp_path: Path, model: str, schedule: str, micro_batches: int
) -> None:
    settings = ["--model", model, "--schedule", schedule, "--micro-batches", str(micro_batches)]
    first, last = run("pipelining", tmp_path, *settings)
    expected = [sum(halves) / 2 for halves in plain(model, 16)]
    assert last["losses"] == pytest.approx(expected, rel=1e-5)
    assert first["losses"] == [None] * 5
    for rank in (first, last):
        assert len(rank["step_s"]) == 3
        assert sum(rank["step_s"]) <= rank["wall_s"]
        assert rank["peak_rss_bytes"] > 50 * 2**20  # torch alone is more


def test_ddp_is_plain_pytorch(tmp_path: Path) -> None:
    ranks = run("ddp", tmp_path)
    expected = plain("mlp", 32)
    assert ranks[0]["losses"] == pytest.approx([halves[0] for halves in expected], rel=1e-5)
    assert ranks[1]["losses"] == pytest.approx([halves[1] for halves in expected], rel=1e-5)


def test_the_models_are_those_of_the_zoo() -> None:
    for name, zoo in (("mlp", mlp()), ("lenet", lenet())):
        ours = [layer.build() for layer in zoo.layers]
        theirs = build(name, 0)
        shapes = [tuple(p.shape) for module in ours for p in module.parameters()]
        assert shapes == [tuple(p.shape) for module in theirs for p in module.parameters()]

        (cut,) = zoo.default_cuts[2]
        crossing = torch.zeros(3, 1, 28, 28)
        for layer in ours[: zoo.names.index(cut) + 1]:
            crossing = layer(crossing)
        assert crossing.numel() == theirs[0](torch.zeros(3, 1, 28, 28)).numel()
