"""The report in a real browser: plots are there, the console is clean, nothing asks a network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import report_runs
from browser import Browser, browser, find_chromium
from freewheel.observe.report import write_report

pytestmark = [
    pytest.mark.chromium,
    pytest.mark.skipif(find_chromium() is None, reason="there is no chromium on this machine"),
]

DESKTOP, NARROW = (1280, 900), (400, 800)
#: Resolves once page.js has drawn every plot.
DRAWN = """new Promise((done) => {
  const look = () => document.documentElement.dataset.drawn ? done(true) : setTimeout(look, 20);
  look();
})"""
#: For each plot: how many marks with some extent it drew.
MARKS = """[...document.querySelectorAll(".plot.js-plotly-plot")].map((plot) =>
  [...plot.querySelectorAll(".plot path, .plot image, .plot rect")].filter((mark) => {
    const box = mark.getBBox();
    return box.width > 0 || box.height > 0;
  }).length)"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    runs = [
        report_runs.pipeline(folder / "a"),
        report_runs.workers(folder / "b"),
        report_runs.workers(folder / "crowd", num_workers=20, name="crowd"),
        report_runs.failed(folder / "c"),
        report_runs.unfinished(folder / "d"),
    ]
    return write_report(runs, folder / "report.html")


def show(chromium: Browser, page: Path, size: tuple[int, int]) -> None:
    chromium.open(page, *size)
    assert chromium.evaluate(DRAWN)


@pytest.mark.parametrize("size", [DESKTOP, NARROW], ids=["desktop", "narrow"])
def test_plots_are_there_and_the_console_is_clean(
    chromium: Browser, page: Path, size: tuple[int, int]
) -> None:
    show(chromium, page, size)
    assert chromium.evaluate("innerWidth") == size[0]
    places = chromium.evaluate('document.querySelectorAll(".plot").length')
    marks = chromium.evaluate(MARKS)
    assert len(marks) == places >= 20
    assert all(count > 0 for count in marks)
    assert chromium.complaints() == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= size[0]
    widest = 'Math.max(...[...document.querySelectorAll(".main-svg")].map(s => s.clientWidth))'
    assert chromium.evaluate(widest) <= size[0]


def test_nothing_is_asked_of_a_network(chromium: Browser, page: Path) -> None:
    show(chromium, page, DESKTOP)
    assert [url for url in chromium.requests() if not url.startswith("data:")] == [page.as_uri()]
    policy = "fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')"
    assert chromium.evaluate(policy) == "refused"
    assert any("Content Security Policy" in complaint for complaint in chromium.complaints())


def test_the_x_axis_is_switched(chromium: Browser, page: Path) -> None:
    show(chromium, page, DESKTOP)
    first = 'document.querySelector(".plot")'
    title = f'{first}.querySelector(".xtitle").textContent'
    seen = {}
    for key in ("wall", "bytes", "steps", "spent"):
        chromium.evaluate(f"document.querySelector('input[value={key}]').click()")
        seen[key] = (chromium.evaluate(title), chromium.evaluate(f"{first}.data[1].x.slice(-1)[0]"))
    # the pipeline's last evaluation: 40 steps of 1 s, 2 x 100 bytes each, scored 2.5 s later
    assert seen["steps"] == ("steps", 40)
    assert seen["bytes"] == ("bytes sent by all processes (B)", 8000)
    assert seen["spent"][1] == 40
    assert seen["wall"][1] == 42.5
    assert chromium.complaints() == []


def test_what_a_run_says_is_never_code(chromium: Browser, tmp_path: Path) -> None:
    attack = "<img src=x onerror='window.pwned=1'></script><script>window.pwned=1</script>"
    rows = [
        report_runs.row(attack, step, loss=1.0, wait_for=attack, metrics={attack: 1.0})
        for step in (1, 2)
    ]
    events = [{"event": attack, "at_s": 1.0, "step": 1, attack: attack, "process": attack}]
    done = {"status": attack, "error": attack, "bytes_by_cut": {attack: 10}, "protocol": attack}
    name = attack.replace("'", "")
    run = report_runs.make_run(tmp_path / "run", rows, events, done, name=name)
    show(chromium, write_report([run], tmp_path / "report.html"), DESKTOP)
    assert chromium.evaluate("window.pwned === undefined")
    assert chromium.evaluate("document.images.length") == 0
    assert chromium.evaluate("document.querySelector('pre').textContent") == attack
    assert chromium.complaints() == []


@pytest.mark.parametrize("num_rows", [0, 1])
def test_a_run_without_steps_is_shown_as_such(
    chromium: Browser, tmp_path: Path, num_rows: int
) -> None:
    rows = list(report_runs.stage_rows(1, num_rows))
    run = report_runs.make_run(tmp_path / "run", rows)
    show(chromium, write_report([run], tmp_path / "report.html"), NARROW)
    text = chromium.evaluate("document.body.innerText")
    assert "unfinished" in text
    assert ("No run has recorded a step" in text) == (num_rows == 0)
    assert chromium.complaints() == []
