"""Every dependency has its line of reason, and every line stands for a dependency."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_dependency_has_exactly_one_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"]]
    for wanted in project["optional-dependencies"].values():
        asked += [spec for spec in wanted if not spec.startswith("freewheel[")]
    names = sorted({re.split(r"[\[<>=~!; ]", spec)[0] for spec in asked})

    page = (ROOT / "docs/adr/dependencies.md").read_text()
    heads = {"dependency", "extra"}
    lines = []
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] not in heads and not cells[0].startswith("--"):
            lines.append(cells[-2])
            assert len(cells[-1]) > 10, f"no reason: {line}"

    assert sorted(lines) == names


def test_each_decision_is_in_the_index_and_short() -> None:
    folder = ROOT / "docs/adr"
    pages = sorted(page.name for page in folder.glob("[0-9]*.md"))
    index = re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text())
    assert index == pages
    for page in pages:
        text = (folder / page).read_text()
        assert len(text.splitlines()) <= 40, page
        assert "## What we turned down" in text, page
        assert "## What would make us change our mind" in text, page
