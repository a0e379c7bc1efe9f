"""docs/architecture.md knows every folder and every message, in the order of the imports."""

from __future__ import annotations

import re
import tomllib

from freewheel.codecs import codecs
from freewheel.models.zoo import models
from freewheel.monitors import monitors
from freewheel.predictors import predictors
from freewheel.protocols import protocols
from freewheel.sharding import sharders
from freewheel.streams import datasets
from tests.docs.pages import ROOT, code, section, tables

PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = ROOT / "src" / "freewheel"
REGISTRIES = {
    "codecs": codecs,
    "datasets": datasets,
    "models": models,
    "monitors": monitors,
    "predictors": predictors,
    "protocols": protocols,
    "sharders": sharders,
}


def listed() -> list[str]:
    rows, *_ = tables(section(PAGE, "A folder answers a question"))
    return [name.rstrip("/") for row in rows for name in re.findall(r"`([^`]*)`", row[0])]


def test_every_folder_is_listed() -> None:
    there = {
        path.name
        for path in PACKAGE.iterdir()
        if path.is_dir() and any(path.glob("*.py")) and path.name != "contract"
    }
    assert {name for name in listed() if not name.endswith(".py")} == there


def test_the_order_is_that_of_the_imports() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = contracts["tool"]["importlinter"]["contracts"][0]["layers"]
    order = [name for layer in layers for name in layer.replace("freewheel.", "").split(" | ")]
    names = [name.removesuffix(".py") for name in listed()]
    assert [name for name in names if name in order] == [name for name in order if name in names]


def test_every_message_is_listed() -> None:
    """A kind is the first argument of ``Message``, ``tell``, ``_tell`` or ``tell_all``."""
    found = tables(section(PAGE, "A run, from the command to the summary"))
    said = {kind for rows in found for row in rows for kind in re.findall(r"`(\w+)`", row[0])}
    sources = "".join(
        path.read_text("utf-8") for path in sorted((PACKAGE / "runtime").rglob("*.py"))
    )
    sent = set(re.findall(r'(?:\bMessage|tell|tell_all|_tell)\(\s*(?:link, )?"(\w+)"', sources))
    assert sent <= said | {"event"}
    assert not {kind for kind in said if f'"{kind}"' not in sources}


def test_where_to_add_things() -> None:
    (rows,) = tables(section(PAGE, "Where to add things"))
    for row in rows:
        name = re.fullmatch(r'@(\w+)\.register\("name"\)', code(row[2]))
        assert name is not None
        found = list((ROOT / code(row[1])).glob("*.py"))
        assert any(f"@{name[1]}.register(" in path.read_text("utf-8") for path in found)
        assert REGISTRIES[name[1]].names()
        assert (ROOT / code(row[3])).is_file()
