"""The trained model as one plain module, and as files that need nothing of freewheel."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import factories
import freewheel
from cli import freewheel as command
from cli import sets, write_config
from freewheel.errors import CheckpointError, ConfigError, ModelError
from freewheel.export import export
from freewheel.models import partition
from freewheel.models.zoo import models
from freewheel.streams.registry import load as load_data
from running import only_run


def accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).double().mean())


def test_freewheel_export_of_a_pipeline(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        '[data]\nname = "digits"\nlimit = 200\n[model]\nname = "lenet"\nnorm = "batch"\n'
        '[optimizer]\nname = "adam"\n[train]\nsteps = 6\n'
    )
    result = command("train", str(config), "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    run_dir = only_run(tmp_path)
    test = load_data("digits", limit=200).test
    everything = torch.arange(len(test))
    x, y = test.inputs(everything), test.targets(everything)

    result = command("export", str(run_dir), "--out", "out", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == "step 6"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "model.pt2",
        "model.safetensors",
    ]
    # plain PyTorch alone: no class of a run is involved
    values = load_file(tmp_path / "out/model.safetensors")
    settings = {"input_shape": [1, 8, 8], "num_classes": 10, "norm": "batch"}
    whole = partition(models.create("lenet", settings), 1).whole()
    whole.load_state_dict(values)
    whole.eval()
    program = torch.export.load(tmp_path / "out/model.pt2").module()
    expected = pytest.approx(summary["final_accuracy"], abs=1e-9)
    assert accuracy(whole, x, y) == expected
    assert accuracy(program, x, y) == expected, "any batch size"
    assert accuracy(freewheel.load(run_dir), x, y) == expected
    assert torch.equal(program(x[:3]), whole(x[:3]))


def test_a_run_that_has_nothing_yet_and_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no run folder"):
        freewheel.load(tmp_path)
    write_config(tmp_path / "config.toml")
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        freewheel.load(tmp_path)


def test_a_model_that_a_script_made_has_to_be_given(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[run]\nname = "x"\n')
    (tmp_path / "origin.json").write_text('{"path": [], "script": "mine.py"}')
    with pytest.raises(ConfigError, match=r"made by mine\.py; give it: .*model="):
        freewheel.load(tmp_path)
    result = command("resume", str(tmp_path), cwd=tmp_path)
    assert result.returncode == 8
    assert "no whole checkpoint" in result.stderr


class Undecided(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.sum()) > 0 else -x


def test_a_model_that_cannot_be_traced_leaves_its_parameters(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    result = command(
        "train",
        str(write_config(tmp_path / "run.toml")),
        *sets(train__steps=1, layout__stages=1, run__dir=str(run_dir)),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    (made,) = run_dir.iterdir()
    torch.manual_seed(0)
    model = nn.Sequential(*factories.small_model(), Undecided())
    with pytest.raises(ModelError, match=r"cannot trace.*model\.safetensors"):
        export(made, tmp_path / "out", model)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]
