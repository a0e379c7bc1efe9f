"""Reads the pages of the documentation: their code blocks, links, headings and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")],
    key=lambda path: path.relative_to(ROOT).parts,
)

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w-]*)")
_NOT_RUN = re.compile(r"<!--\s*not run:\s*(?P<reason>.*?)\s*-->\s*\Z", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: ``line`` is the number of its first line of text, counted from 1."""

    page: Path
    language: str
    text: str
    line: int
    not_run: str | None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    """Return the blocks of these languages; those marked ``<!-- not run: reason -->`` say so."""
    return [block for block in _all_blocks(page) if block.language in languages]


def _all_blocks(page: Path) -> Iterator[Block]:
    before: list[str] = []
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    for _, line in lines:
        opened = _FENCE.match(line)
        if opened is None:
            before.append(line)
            continue
        indent, fence = len(opened["indent"]), opened["fence"]
        first, body = 0, []
        for number, inner in lines:
            if inner.strip() == fence:
                break
            first = first or number
            body.append(inner[indent:])
        else:
            raise AssertionError(f"{page}: a block that begins {line!r} is never closed")
        marked = _NOT_RUN.search("\n".join(before).rstrip())
        reason = marked["reason"] if marked else None
        yield Block(page, opened["language"], "\n".join(body) + "\n", first, reason)
        before = []


def prose(page: Path) -> str:
    """Return a page without its fenced blocks and comments."""
    return re.sub(r"<!--.*?-->", "", without_blocks(page.read_text("utf-8")), flags=re.S)


def without_blocks(text: str) -> str:
    """Return a text without its fenced blocks."""
    return re.sub(r"^ *(`{3,})[^\n]*\n.*?^ *\1 *$", "", text, flags=re.S | re.M)


def links(page: Path) -> list[str]:
    """Return the targets of a page's links that are not of the web."""
    targets = re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page)))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*?)\s*$", prose(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


def named_paths(page: Path) -> set[str]:
    """Return the paths of this repository that a page names in backticks."""
    folders = "src|docs|tests|examples|benchmarks|scripts"
    found = set(re.findall(rf"`((?:{folders})/[\w./-]*)`", prose(page)))
    # benchmarks/NAME stands for many
    return {path for path in found if not re.search(r"/[A-Z]+(?=[/.]|$)", path)}


def section(page: Path, heading: str) -> str:
    """Return the text below a heading, up to the next one of any level."""
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^#+ {re.escape(heading)}\s*$(.*?)(?=^#+ |\Z)", text, re.M | re.S)
    assert found is not None, f"{page.relative_to(ROOT)} has no section {heading!r}"
    return found[1]


def tables(text: str) -> list[list[list[str]]]:
    """Return the tables of a text: rows of cells, without the heading."""
    found: list[list[list[str]]] = []
    for rows in re.findall(r"(?:^ *\|.*\n?)+", without_blocks(text), flags=re.M):
        # \| stands for a | that is no border
        cells = [re.split(r"(?<!\\)\|", row.strip())[1:-1] for row in rows.splitlines()]
        found.append([[c.replace("\\|", "|").strip() for c in row] for row in cells[2:]])
    return found


def code(cell: str) -> str:
    """Return the first thing in backticks of a cell."""
    found = re.search(r"`([^`]*)`", cell)
    assert found is not None, f"nothing in backticks in {cell!r}"
    return found[1]


def commands(page: Path) -> list[str]:
    """Return the lines of a page's shell blocks that begin with ``freewheel`` or ``make``."""
    lines = [line for block in blocks(page, "sh", "") for line in block.text.splitlines()]
    lines += [line[2:] for block in blocks(page, "console") for line in block.text.splitlines()]
    found = [line.partition("  #")[0].strip() for line in lines]
    return [line for line in found if line.startswith(("freewheel ", "make "))]
