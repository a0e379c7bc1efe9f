"""docs/run_folder.md names each file and field of a run, and none that is not there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from freewheel.observe.run_folder import read_rows
from tests.docs.pages import ROOT, code, section, tables

PAGE = ROOT / "docs" / "run_folder.md"


def rows_of(heading: str) -> list[list[str]]:
    return tables(section(PAGE, heading))[0]


def test_files(quickstart: Path) -> None:
    said = {code(row[0]).rstrip("/") for row in rows_of("The run folder")}
    assert said - {"checkpoints"} == {path.name for path in quickstart.iterdir()}


def test_fields_of_a_step(quickstart: Path) -> None:
    rows = read_rows(quickstart / "metrics.jsonl")
    said = {code(row[0]) for row in rows_of("metrics.jsonl")}
    assert all(set(row) == said for row in rows)
    assert {row["epoch"] for row in rows} >= {0}
    assert min(row["step"] for row in rows) == 1


def test_fields_of_the_summary(quickstart: Path) -> None:
    summary = json.loads((quickstart / "summary.json").read_text(encoding="utf-8"))
    assert [code(row[0]) for row in rows_of("summary.json")] == list(summary)


def test_events(quickstart: Path) -> None:
    said = {code(row[0]): row[1] for row in rows_of("events.jsonl")}
    for row in read_rows(quickstart / "events.jsonl"):
        fields = set(re.findall(r"`(\w+)`", said[row["event"]]))
        assert set(row) == {"event", "at_s", *fields}


def test_every_event_of_the_code_is_listed() -> None:
    said = {code(row[0]) for row in rows_of("events.jsonl")}
    found = set()
    for folder in ("runtime", "launch"):
        for file in (ROOT / "src" / "freewheel" / folder).rglob("*.py"):
            form = r'(?:folder\.event\(\s*|\{"event": |\b_log\()"(\w+)"'
            found |= set(re.findall(form, file.read_text("utf-8")))
    assert found == said
