"""The TOML of the pages and the examples is configuration that freewheel takes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from freewheel.codecs import make_codec
from freewheel.config import Config, load_config, parse_config
from freewheel.protocols import protocols
from tests.docs.pages import PAGES, ROOT, Block, blocks

TOML = [block for page in PAGES for block in blocks(page, "toml") if block.not_run is None]
#: Those of `freewheel compare` hold several runs, and have tests of their own.
FILES = sorted(
    file
    for file in (ROOT / "examples").rglob("*.toml")
    if "compare" not in tomllib.loads(file.read_text(encoding="utf-8"))
)


def check(config: Config) -> None:
    protocol = protocols.create(config.protocol_name, config.protocol.settings)
    if config.protocol.name is None:
        assert protocol.layout == config.layout.kind
    for spec in (config.codec.forward, config.codec.backward, config.codec.push, config.codec.pull):
        make_codec(spec)


@pytest.mark.parametrize("block", TOML, ids=lambda block: block.where)
def test_toml_of_a_page_is_valid(block: Block) -> None:
    check(parse_config(tomllib.loads(block.text), origin=block.where))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_example_is_valid(file: Path) -> None:
    config = load_config(file)
    check(config)
    protocol = protocols.create(config.protocol_name, config.protocol.settings)
    assert protocol.layout == config.layout.kind
