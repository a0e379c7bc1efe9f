"""``freewheel.train`` from a script of the user's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cli import environment

SCRIPT = """
import torch
from torch import nn
import freewheel

torch.manual_seed(0)
x, y = torch.randn(40, 6), torch.randint(0, 3, (40,))
{before}
result = freewheel.train(
    model=nn.Sequential(nn.Linear(6, 8), Scale(lambda h: h * 2), nn.Linear(8, 3)),
    data=((x, y), (x, y)),
    loss=nn.CrossEntropyLoss(),
    optimizer=lambda p: torch.optim.Adam(p, lr=0.01),
    layout={{"kind": {kind!r}, "stages": 2, "workers": 2}},
    train={{"steps": 4}},
    quiet=True,
)
print("{mark}", result.summary["status"], sorted(result.state_dict())[0])
"""

SCALE = """
class Scale(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, h):
        return self.function(h)
"""


def run(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(text)
    return subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_a_script_without_a_guard_and_a_model_with_a_lambda(tmp_path: Path) -> None:
    text = SCRIPT.format(before=SCALE, kind="pipeline", mark="first")
    result = run(tmp_path, text)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "first ok 0.bias"


def test_two_runs_in_one_script_the_second_after_the_first(tmp_path: Path) -> None:
    first = SCRIPT.format(before=SCALE, kind="pipeline", mark="first")
    second = SCRIPT.format(before="", kind="replicas", mark="second")
    result = run(tmp_path, first + second)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["first", "ok", "0.bias", "second", "ok", "0.bias"]


def test_a_script_read_from_standard_input_gets_a_clear_message(tmp_path: Path) -> None:
    text = SCRIPT.format(before=SCALE, kind="pipeline", mark="first")
    result = subprocess.run(
        [sys.executable, "-"],
        input=text,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 1
    assert "put the model, data and optimizer into functions of a module" in result.stderr
    assert not (tmp_path / "runs").exists()
