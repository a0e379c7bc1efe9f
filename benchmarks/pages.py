"""Docs pages that hold tables of a results file between two marks, and are checked against it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS

BEGIN, END = "<!-- begin: from the results file -->", "<!-- end -->"


def write_page(
    name: str,
    page: Path,
    render: Callable[[Mapping[str, Any]], str],
    argv: Sequence[str] | None = None,
) -> int:
    """Write the tables of a results file into a page; with ``--check`` see whether they are there.

    Args:
        name: of the benchmark.
        page: with the two marks in it.
        render: makes the tables of the results.
        argv: of the command.

    Returns:
        The exit code: 1 where ``--check`` found the page out of date.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}.page")
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    given = parser.parse_args(argv)
    old = page.read_text()
    new = placed(old, render(json.loads((RESULTS / f"{name}.json").read_text())))
    if given.check:
        return int(old != new)
    page.write_text(new)
    return 0


def placed(page: str, tables: str) -> str:
    """Return the page with the part between the two marks replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"
