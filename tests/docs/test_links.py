"""Links between pages lead somewhere, and so do the paths that pages name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, links, named_paths


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.relative_to(ROOT)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(there), f"{page.relative_to(ROOT)}: no heading for {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_paths_exist(page: Path) -> None:
    missing = {path for path in named_paths(page) if not (ROOT / path).exists()}
    assert not missing, f"{page.relative_to(ROOT)} names paths that are not there: {missing}"


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    reached = {(index.parent / target.partition("#")[0]).resolve() for target in links(index)}
    records = (ROOT / "docs" / "adr").resolve()
    missing = {
        str(page.relative_to(ROOT))
        for page in PAGES
        if page.is_relative_to(ROOT / "docs")
        and page.resolve() not in reached | {index.resolve()}
        and not (page.resolve().is_relative_to(records) and page.name != "README.md")
    }
    assert not missing, f"docs/index.md leaves out {sorted(missing)}"
