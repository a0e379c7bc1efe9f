"""docs/errors.md has every exit code, and messages that are in the code."""

from __future__ import annotations

import ast
import doctest
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from freewheel import errors
from freewheel.cli.main import main
from tests.docs.pages import ROOT, Block, blocks, code, tables

PAGE = ROOT / "docs" / "errors.md"
TEXT = PAGE.read_text(encoding="utf-8")


def parts() -> dict[int, str]:
    """Return the text of each ``## CODE: ...`` by code."""
    found = re.split(r"^## (\d+): .*$", TEXT, flags=re.M)
    return {int(number): text for number, text in zip(found[1::2], found[2::2], strict=True)}


def test_every_code_is_there_with_its_class() -> None:
    said = {code(row[0]): row[1].strip("`") for row in tables(TEXT)[0]}
    codes = {value for key, value in vars(errors).items() if key.startswith("EXIT_")}
    assert {int(number) for number in said} == codes
    assert parts().keys() == codes - {errors.EXIT_OK}
    classes = {
        str(made.exit_code): made.__name__
        for made in reversed(vars(errors).values())
        if isinstance(made, type) and issubclass(made, errors.FreewheelError)
    }
    assert {number: name for number, name in said.items() if name} == classes


@cache
def texts_of_the_code() -> str:
    """Return the string constants of the package, joined over source lines, as one text."""
    found = []
    for file in sorted((ROOT / "src" / "freewheel").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


MESSAGES = [code(row[0]) for part in parts().values() for table in tables(part) for row in table]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_of_the_code(message: str) -> None:
    pieces = [piece.strip() for piece in re.split(r"\.\.\.|\d+(?=\))", message)]
    pieces = [piece for piece in pieces if len(piece) > 2]
    assert pieces
    missing = [piece for piece in pieces if piece not in texts_of_the_code()]
    assert not missing


CONSOLE = [
    (number, block)
    for block in blocks(PAGE, "console")
    for number in [int(re.findall(r"^## (\d+):", TEXT[: TEXT.index(block.text)], re.M)[-1])]
]


@pytest.mark.parametrize(("number", "block"), CONSOLE, ids=lambda value: str(value)[:1])
def test_commands_fail_as_the_page_says(
    number: int,
    block: Block,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(ROOT)
    checker = doctest.OutputChecker()
    for command, expected in re.findall(
        r"^\$ freewheel (.*)\n((?:(?!\$ ).*\n)+)", block.text, re.M
    ):
        options = ["--set", f"run.dir={tmp_path}"]
        monkeypatch.setattr(sys, "argv", ["freewheel", *command.split(), *options])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == number, command
        said = capsys.readouterr()
        assert said.out == ""
        assert checker.check_output(expected, said.err, doctest.ELLIPSIS), said.err
    assert not list(tmp_path.iterdir()), "no run was begun"
