"""The Python of the pages runs, and prints what the comment beside a ``print`` says."""

from __future__ import annotations

import builtins
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import PAGES, ROOT, Block, blocks

WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]


class Checked:
    """``print``, held against the comment that stands behind it on its line of the page."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def __call__(self, *values: object, **options: Any) -> None:
        line = self.lines[sys._getframe(1).f_lineno - 1]
        builtins.print(*values, **options)
        said = re.search(r"  # ([^A-Za-z].*|True|False|None)$", line)
        if said is not None:
            printed = " ".join(map(str, values))
            assert said[1].startswith(printed), f"{line.strip()!r} printed {printed!r}"


def runnable(page: Path) -> list[Block]:
    return [block for block in blocks(page, "python") if block.not_run is None]


def as_script(page: Path) -> str:
    """Return the blocks of a page at the lines where they stand, so that errors name those."""
    text = ""
    for block in runnable(page):
        text += "\n" * (block.line - 1 - text.count("\n")) + block.text
    return text


def needs_script(page: Path) -> bool:
    """Whether other processes run the text again, which an ``exec`` cannot offer them."""
    return "<!-- run as a script -->" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = as_script(page)
    if needs_script(page):
        script = tmp_path / "page.py"
        script.write_text(text, encoding="utf-8")
        result = subprocess.run(
            [sys.executable, "-W", "error", str(script)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        return
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FREEWHEEL_DATA", raising=False)
    names: dict[str, Any] = {"__name__": "page", "print": Checked(text.split("\n"))}
    exec(compile(text, str(page.relative_to(ROOT)), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_who_is_not_run_has_a_reason(page: Path) -> None:
    for block in blocks(page, "python", "toml", "sh", "console"):
        if block.not_run is not None:
            assert len(block.not_run.split()) >= 3, f"{block.where}: say why it is not run"


def test_a_wrong_comment_is_found() -> None:
    text = "print([2 + 3])  # [6]"
    with pytest.raises(AssertionError, match=r"printed '\[5\]'"):
        exec(text, {"print": Checked([text])})


def test_the_readme_shows_the_example_and_it_has_15_lines() -> None:
    text = (ROOT / "examples" / "python_api.py").read_text(encoding="utf-8")
    assert [block.text for block in blocks(ROOT / "README.md", "python")] == [text]
    assert len([line for line in text.splitlines() if line.strip()]) <= 15


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
