"""The commands that pages show exist, with these arguments; the README's are run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer

from freewheel.cli.main import app
from tests.docs.pages import PAGES, ROOT, commands

SHOWN = [(page.relative_to(ROOT), line) for page in PAGES for line in commands(page)]
FREEWHEEL = typer.main.get_command(app)


@pytest.mark.parametrize(
    ("page", "line"), [shown for shown in SHOWN if shown[1].startswith("freewheel")]
)
def test_freewheel_takes_these_arguments(page: Path, line: str) -> None:
    # what follows in the shell is not freewheel's
    name, *arguments = re.split(r" [|>&]", line)[0].split()[1:]
    command = FREEWHEEL.commands.get(name)
    assert command is not None, f"{page}: there is no `freewheel {name}`"
    command.make_context(name, arguments)


@pytest.mark.parametrize(
    ("page", "line"), [shown for shown in SHOWN if shown[1].startswith("make")]
)
def test_make_has_these_targets(page: Path, line: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    for word in line.split()[1:]:
        assert "=" in word or word in targets, f"{page}: there is no `make {word}`"


def test_the_first_two_commands_of_the_readme() -> None:
    assert commands(ROOT / "README.md")[:2] == ["make demo", "make test"]


def test_the_quickstart_of_the_readme_runs(quickstart: Path) -> None:
    summary = json.loads((quickstart / "summary.json").read_text(encoding="utf-8"))
    assert (summary["status"], summary["steps"], summary["world_size"]) == ("ok", 30, 2)


def test_make_demo_runs_the_quickstart() -> None:
    demo = re.search(r"^demo:.*\n\t.*freewheel (.*)", (ROOT / "Makefile").read_text("utf-8"), re.M)
    assert demo is not None
    assert f"freewheel {demo[1]}" in commands(ROOT / "README.md")
