"""A loop of the user's own, alone, under ``freewheel launch`` and under ``torchrun``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import factories
from cli import ROOT, SUPPORT, environment, freewheel

SCRIPT = SUPPORT / "loop_script.py"


def run(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env={**environment(), **variables},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def plain(world: int, steps: int = 6) -> dict[str, Tensor]:
    """The same loop over the batches of all workers, whose clipped gradients are averaged."""
    models = [factories.batchnorm_model() for _ in range(world)]
    optimizer = torch.optim.SGD(models[0].parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    (x, y), _ = factories.small_data(96)
    for step in range(steps):
        for model in models:
            model.load_state_dict(models[0].state_dict())
            model.zero_grad()
        for rank, model in enumerate(models):
            for part in range(2):
                start = (step * world * 2 + rank * 2 + part) * 4
                rows = torch.arange(start, start + 4) % 96
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                (loss / 2).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.7)
        for parameters in zip(*(model.parameters() for model in models), strict=True):
            parameters[0].grad = torch.stack([p.grad for p in parameters]).mean(0)
        for buffers in zip(*(model.buffers() for model in models), strict=True):
            if buffers[0].is_floating_point():
                buffers[0].copy_(torch.stack(buffers).mean(0))
        optimizer.step()
        scheduler.step()
    return models[0].state_dict()


def test_alone_and_as_the_only_worker_it_is_plain_pytorch_bit_for_bit(tmp_path: Path) -> None:
    alone = run(sys.executable, str(SCRIPT), str(tmp_path), cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert "worker 0 of 1 is done" in alone.stdout
    found = load_file(tmp_path / "1-0.safetensors")
    for name, value in plain(1).items():
        assert torch.equal(found[name], value), name
    (tmp_path / "1-0.safetensors").unlink()
    launched = freewheel(
        *("launch", str(SCRIPT), str(tmp_path), "--workers", "1", "--servers", "2"),
        *("--protocol", "ssp", "--staleness", "3"),
        cwd=tmp_path,
    )
    assert launched.returncode == 0, launched.stderr
    assert "[worker 0] worker 0 of 1 is done" in launched.stdout
    again = load_file(tmp_path / "1-0.safetensors")
    for name, value in found.items():
        assert torch.equal(again[name], value), name


@pytest.mark.parametrize("how", ["launch", "torchrun"])
def test_two_workers_under_bsp_average_their_gradients(how: str, tmp_path: Path) -> None:
    if how == "launch":
        options = ("--workers", "2", "--set", "layout.placement=colocated", "--json")
        done = freewheel("launch", str(SCRIPT), str(tmp_path), *options, cwd=tmp_path)
    else:
        torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
        done = run(
            *(*torchrun, "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
            *(str(SCRIPT), str(tmp_path)),
            cwd=tmp_path,
            FREEWHEEL_SET="layout.servers=2",
            PYTHONWARNINGS="",
        )
    assert done.returncode == 0, done.stderr
    states = [load_file(tmp_path / f"2-{rank}.safetensors") for rank in range(2)]
    for name, value in states[0].items():
        assert torch.equal(value, states[1][name]), f"{name}: all end with the same parameters"
    for name, value in plain(2).items():
        assert torch.allclose(states[0][name], value, rtol=1e-5, atol=1e-6), name
    (folder,) = (tmp_path / "runs").iterdir()
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["version"], summary["steps"]) == ("ok", 6, 6)


def test_an_error_in_one_loop_ends_all_and_is_shown(tmp_path: Path) -> None:
    options = ("--workers", "2", "--protocol", "asp")
    arguments = ("--", str(tmp_path), "6", "3")
    done = freewheel("launch", str(SCRIPT), *options, *arguments, cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    assert "this loop has had enough" in done.stderr


def test_the_example_is_short_and_needs_no_launcher() -> None:
    text = (ROOT / "examples" / "own_loop.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 40
    assert "__main__" not in text


@pytest.mark.parametrize(
    ("carrier", "address"),
    [("zeromq", "tcp://127.0.0.1:9,10"), ("local", "local://nobody")],
)
def test_scenario_17_a_worker_without_a_coordinator_says_whom_it_could_not_reach(
    tmp_path: Path, carrier: str, address: str
) -> None:
    (tmp_path / "config.toml").write_text(
        f'[layout]\nkind = "server"\n[run]\njoin_timeout_s = 0.5\n[link]\ncarrier = "{carrier}"\n',
        encoding="utf-8",
    )
    job = {
        "role": "worker",
        "rank": 1,
        "run_id": "00" * 8,
        "run_dir": str(tmp_path),
        "coordinator": address,
    }
    done = run(
        *(sys.executable, str(SCRIPT), str(tmp_path)),
        cwd=tmp_path,
        FREEWHEEL_JOB=json.dumps(job),
        OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"),
    )
    assert done.returncode != 0
    assert "worker 1 could not hand 'hello' to coordinator" in done.stderr
    assert "it could not be reached" in done.stderr
