"""Runs that were not disturbed, to compare others with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import freewheel
from disturbed import command
from running import Running, only_run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Return a function that starts ``freewheel ARGUMENTS``; what still runs is ended."""
    started: list[Running] = []

    def run(*arguments: str) -> Running:
        started.append(Running(*arguments, cwd=tmp_path))
        return started[-1]

    yield run
    for running in started:
        running.end()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function from layout to the folder of a run to which nothing happened."""
    found: dict[str, Path] = {}

    def run(kind: str) -> Path:
        if kind not in found:
            folder = tmp_path_factory.mktemp(kind)
            result = freewheel(*command(folder, kind), cwd=folder)
            assert result.returncode == 0, result.stderr
            found[kind] = only_run(folder)
        return found[kind]

    return run
