"""Going on from a script, from another folder, with another layout; and a disk that fills up."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import freewheel as library
from cli import SUPPORT, environment, freewheel, sets, write_config
from freewheel.errors import ConfigError
from freewheel.observe.run_folder import read_rows
from freewheel.runtime.checkpoints.checkpoint import checkpoints
from plain import train_plain
from running import final_of, only_run, summary_of

SCRIPT = """
import sys, torch
from torch import nn
import freewheel

class Scale(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, h):
        return self.function(h)

torch.manual_seed(0)
x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
model = nn.Sequential(nn.Linear(6, 8), Scale(lambda h: h * 2), nn.Linear(8, 3))
more = {"resume": sys.argv[2]} if len(sys.argv) > 2 else {}
result = freewheel.train(
    model=model,
    data=((x, y), (x, y)),
    optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
    layout={"stages": 2},
    train={"steps": int(sys.argv[1])},
    checkpoint={"every": 2},
    quiet=True,
    **more,
)
print(result.summary["steps"], result.run_dir)
"""


def test_a_script_goes_on_with_its_own_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)

    def run(*arguments: str) -> tuple[str, Path]:
        result = subprocess.run(
            [sys.executable, "mine.py", *arguments],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        steps, folder = result.stdout.split()
        return steps, tmp_path / folder

    steps, folder = run("4")
    assert steps == "4"
    # the command line has no lambda, and says what to do
    result = freewheel("resume", str(folder), cwd=tmp_path)
    assert result.returncode == 2
    assert f"freewheel.train(..., resume='{folder}')" in result.stderr
    assert "mine.py" in result.stderr
    assert run("8", str(folder)) == ("8", folder)
    rows = read_rows(folder / "metrics.jsonl")
    assert [r["step"] for r in rows if r["process"] == "stage 1"] == list(range(1, 9))
    # the same as plain PyTorch in one go
    torch.manual_seed(0)
    x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
    first, last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
    model = torch.nn.Sequential(first, Twice(), last)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train_plain(model, x, y, torch.nn.CrossEntropyLoss(), optimizer, 8, 64, micro_batches=4)
    for name, value in final_of(folder).items():
        assert torch.allclose(value, model.state_dict()[name], rtol=1e-5, atol=1e-6), name
    with pytest.raises(ConfigError, match=r"mine\.py"):
        library.load(folder)
    loaded = library.load(folder, torch.nn.Sequential(torch.nn.Linear(6, 8), Twice(), last))
    assert torch.equal(loaded[0].weight, final_of(folder)["0.weight"])


class Twice(torch.nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h * 2


def test_from_another_folder_and_with_other_stages(tmp_path: Path) -> None:
    """The factory lies beside the TOML file: nobody has to say so again."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "own.py").write_text((SUPPORT / "factories.py").read_text())
    config = write_config(
        home / "run.toml",
        '[data]\nfactory = "own:small_data"\nbatch_size = 8\n[model]\nfactory = "own:small_model"\n'
        '[optimizer]\nname = "adam"\n[train]\nsteps = 6\n[checkpoint]\nevery = 3\n',
    )
    run = subprocess.run(
        [sys.executable, "-m", "freewheel.cli.main", "train", str(config)],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    run_dir = only_run(home)
    expected = final_of(run_dir)
    went_on = subprocess.run(
        [sys.executable, "-m", "freewheel.cli.main", "resume",
         str(run_dir / "checkpoints/step-00000003"), *sets(layout__stages=1), "--json"],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )  # fmt: skip
    assert went_on.returncode == 0, went_on.stderr
    summary = json.loads(went_on.stdout)
    assert (summary["world_size"], summary["steps"], summary["samples"]) == (1, 6, 48)
    found = final_of(run_dir)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    assert [path.name for path in (run_dir / "final").iterdir()] == ["stage-0.safetensors"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk of 300 kB")
    path = tmp_path / "runs"
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode != 0:
        pytest.skip(f"cannot mount: {made.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_disk_that_fills_up_while_training(tmp_path: Path, small_disk: Path) -> None:
    config = write_config(tmp_path / "run.toml")
    more = sets(checkpoint__every=1, checkpoint__keep=100, train__steps=100)
    result = freewheel("train", str(config), *more, cwd=tmp_path)
    assert result.returncode == 8, result.stderr
    assert "Traceback" not in result.stderr
    (error,) = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert "No space left" in error
    assert "untouched" in error
    run_dir = only_run(tmp_path)
    saved = checkpoints(run_dir / "checkpoints")
    assert len(saved) >= 2
    for checkpoint in saved:
        for process in checkpoint.processes():
            assert checkpoint.values(process)["step"] == checkpoint.step
    # with room again it goes on from there
    for old in saved[:-1]:
        shutil.rmtree(old.path)
    more = sets(checkpoint__keep=1, checkpoint__every=50)
    result = freewheel("resume", str(run_dir), *more, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert summary_of(run_dir)["steps"] == 100
    steps = [r["step"] for r in read_rows(run_dir / "metrics.jsonl") if r["process"] == "stage 1"]
    assert steps == list(range(1, 101))
