"""The page of a report, its exports, and the command."""

from __future__ import annotations

import base64
import csv
import hashlib
import html.parser
import json
import re
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import report_runs
from freewheel.cli.report import report
from freewheel.errors import ConfigError
from freewheel.observe.csv_export import write_csv
from freewheel.observe.report import open_runs, write_report
from freewheel.observe.report.build import make_page
from freewheel.observe.report.tables import MAX_EVENTS, events_table, settings_table, summary_table
from freewheel.observe.tensorboard import write_tensorboard


class Seen(html.parser.HTMLParser):
    """What a browser would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts.append(data)


@pytest.fixture
def page(tmp_path: Path) -> str:
    runs = [report_runs.pipeline(tmp_path / "a"), report_runs.failed(tmp_path / "b")]
    return write_report(runs, tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_one_file_that_needs_nothing_else(page: str) -> None:
    seen = Seen(page)
    assert not [values for _, values in seen.tags if "src" in values]
    links = [values.get("href") for tag, values in seen.tags if tag in ("link", "a")]
    assert links == ["data:,"]
    assert len(page.encode()) < 10_000_000


def test_only_our_scripts_may_run(page: str) -> None:
    seen = Seen(page)
    data, *code = seen.scripts
    json.loads(data)
    (policy,) = [v["content"] or "" for tag, v in seen.tags if "http-equiv" in v]
    hashes = [base64.b64encode(hashlib.sha256(c.encode()).digest()).decode() for c in code]
    assert re.findall(r"'sha256-([^']+)'", policy) == hashes
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy.split("script-src")[1].split(";")[0]


def test_error_text_is_escaped_and_whole(page: str) -> None:
    assert "failed: &lt;script&gt;alert(1)&lt;/script&gt;</pre>" in page
    assert "<script>alert" not in page


def test_sections(page: str) -> None:
    found = re.findall("<h2>(.*?)</h2>", page)
    assert found == [
        "Summary",
        "Learning",
        "Where time went",
        "Bytes",
        "Monitors",
        "Decisions and events",
        "Settings",
    ]


def test_summaries_of_runs_in_every_state(tmp_path: Path) -> None:
    runs = open_runs(
        [
            report_runs.pipeline(tmp_path / "a"),
            report_runs.workers(tmp_path / "b"),
            report_runs.failed(tmp_path / "c"),
            report_runs.unfinished(tmp_path / "d"),
        ]
    )
    rows = [
        [re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?>(.*?)</td>", row)]
        for row in summary_table(runs).split("<tr>")[2:]
    ]
    assert [row[:2] for row in rows] == [
        ["pipe", "ok"],
        ["asp", "ok"],
        ["broken", "failed"],
        ["killed", "unfinished"],
    ]
    # steps, accuracy, loss, bytes, time, waiting: of the killed run, from what it had recorded
    assert rows[0][5:] == ["40", "0.7500", "0.5000", "8.0 kB", "40.0 s", "50%"]
    assert rows[1][9] == "60.0 s (virtual)"
    assert rows[3][5:] == ["7", "0.5050", "0.4000", "1.4 kB", "7.00 s", "50%"]


def test_settings_that_differ(tmp_path: Path) -> None:
    same = open_runs([report_runs.failed(tmp_path / "a")])
    assert settings_table(same) == ""
    runs = open_runs([report_runs.pipeline(tmp_path / "b"), report_runs.workers(tmp_path / "c")])
    keys = re.findall("<code>(.*?)</code>", settings_table(runs))
    assert keys == ["run.name", "optimizer.lr", "layout.kind"]


def test_rare_events_are_all_shown(tmp_path: Path) -> None:
    events = [{"event": "dropped", "at_s": i / 10} for i in range(1000)]
    events.insert(700, {"event": "switch", "at_s": 70.0, "to": "asp"})
    (run,) = open_runs([report_runs.make_run(tmp_path / "a", events=events)])
    found = events_table(run)
    assert found.count("<tr>") == 1 + MAX_EVENTS
    assert "to asp" in found
    assert f"Shown: {MAX_EVENTS} of 1,001." in found


def test_a_page_about_nothing(tmp_path: Path) -> None:
    page = make_page(open_runs([report_runs.make_run(tmp_path / "a")]))
    assert page.figures == {}
    assert "No run has recorded a step." in page.render()


def test_the_page_cannot_be_written(tmp_path: Path) -> None:
    run = report_runs.failed(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"cannot write the report .*; give --out FILE.html"):
        write_report([run], run / "config.toml" / "report.html")
    with pytest.raises(ConfigError, match="cannot write the report"):
        write_report([run], tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_csv_holds_every_row(tmp_path: Path) -> None:
    runs = open_runs([report_runs.unfinished(tmp_path / "a"), report_runs.workers(tmp_path / "b")])
    metrics, events, summaries = write_csv(runs, tmp_path / "csv")
    with metrics.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(run.rows) for run in runs)
    first = rows[1]
    assert (first["run"], first["process"], first["step"], first["virtual_s"]) == (
        "killed",
        "stage 1",
        "1",
        "",
    )
    assert float(first["metrics.accuracy"]) == runs[0].rows.metrics["accuracy"][1]
    with events.open(newline="", encoding="utf-8") as file:
        assert sum(row["event"] == "evaluated" for row in csv.DictReader(file)) == 7
    with summaries.open(newline="", encoding="utf-8") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["unfinished", "ok"]


def test_csv_cannot_be_written(tmp_path: Path) -> None:
    runs = open_runs([report_runs.failed(tmp_path / "a")])
    with pytest.raises(ConfigError, match="cannot write CSV into"):
        write_csv(runs, tmp_path / "a" / "config.toml")


def test_tensorboard_is_named_where_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("tensorboard", "tensorboard.compat.proto.event_pb2"):
        monkeypatch.setitem(sys.modules, module, None)
    runs = open_runs([report_runs.failed(tmp_path / "a")])
    with pytest.raises(ConfigError, match=r"pip install freewheel\[tensorboard\]"):
        write_tensorboard(runs, tmp_path / "tb")
    assert not (tmp_path / "tb").exists()


@pytest.fixture
def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(report)
    return app


def test_the_command_writes_into_the_folder_of_one_run(
    tmp_path: Path, command: typer.Typer
) -> None:
    run = report_runs.pipeline(tmp_path / "a")
    result = CliRunner().invoke(command, [str(run)])
    assert result.output == f"{run / 'report.html'}\n"
    assert (run / "report.html").stat().st_size > 1_000_000


def test_the_command_writes_several_runs_here(
    tmp_path: Path, command: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [report_runs.pipeline(tmp_path / "a"), report_runs.failed(tmp_path / "b")]
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, [str(run) for run in runs])
    assert result.output == "report.html\n"
    assert "2 runs" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_command_exports_without_a_page(tmp_path: Path, command: typer.Typer) -> None:
    run = report_runs.pipeline(tmp_path / "a")
    result = CliRunner().invoke(command, [str(run), "--csv", str(tmp_path / "csv")])
    assert result.exit_code == 0
    assert sorted(path.name for path in (tmp_path / "csv").iterdir()) == [
        "events.csv",
        "metrics.csv",
        "runs.csv",
    ]
    assert not (run / "report.html").exists()


def test_the_command_refuses_what_is_no_run(tmp_path: Path, command: typer.Typer) -> None:
    result = CliRunner().invoke(command, [str(tmp_path / "gone")])
    assert isinstance(result.exception, ConfigError)
