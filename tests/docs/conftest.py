"""The one run that several of these tests look at: the command of the README, made small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from freewheel.cli.main import main
from tests.docs.pages import ROOT, commands

SMALL = {"train.steps": "30", "eval.every": "20", "data.limit": "600"}


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the README's ``freewheel train``, with small numbers; return the run folder."""
    (command,) = [c for c in commands(ROOT / "README.md") if c.startswith("freewheel train")]
    runs = tmp_path_factory.mktemp("runs")
    options = [f"--set={key}={value}" for key, value in {**SMALL, "run.dir": str(runs)}.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(sys, "argv", [*command.split(), *options])
        main()
    (folder,) = runs.iterdir()
    return folder
