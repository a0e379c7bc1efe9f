"""Runs in, page out."""

from __future__ import annotations

import html
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import tomli_w

from freewheel._version import __version__
from freewheel.errors import ConfigError
from freewheel.observe.report.asynchrony import PAIRED_PX, clocks_figure, staleness_figure
from freewheel.observe.report.learning import AXES, learning_figures
from freewheel.observe.report.page import Page, grid
from freewheel.observe.report.remembered import history_figures
from freewheel.observe.report.run import Run, label_runs, open_run
from freewheel.observe.report.spent import totals_figure, waits_figure
from freewheel.observe.report.tables import (
    badge,
    events_table,
    named,
    settings_table,
    summary_table,
)
from freewheel.observe.report.timeline import timeline_figure
from freewheel.observe.report.traffic import bytes_by_cut, traffic_figure
from freewheel.observe.report.verdicts import verdict_figures

MAX_ERROR = 6000


def write_report(paths: Sequence[Path], out: Path) -> Path:
    """Write one page about some runs.

    Args:
        paths: of run folders, in the order in which they are to be shown.
        out: the HTML file; one that exists is replaced.

    Returns:
        ``out``.

    Raises:
        ConfigError: a folder is missing or no run's, or the page cannot be written.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from freewheel.observe.report import write_report
        >>> with TemporaryDirectory() as name:
        ...     run = Path(name)
        ...     _ = (run / "metrics.jsonl").write_text('{"process": "stage 0", "step": 1}')
        ...     text = write_report([run], run / "report.html").read_text(encoding="utf-8")
        >>> "unfinished" in text
        True
    """
    return write_page(open_runs(paths), out)


def write_page(runs: Sequence[Run], out: Path) -> Path:
    """Write one page about runs that are open: ``write_report`` without the reading.

    Raises:
        ConfigError: the page cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from freewheel.config import Config
        >>> from freewheel.observe.run_folder import RunFolder
        >>> from freewheel.observe.report import open_runs, write_page
        >>> with tempfile.TemporaryDirectory() as home:
        ...     RunFolder(Path(home) / "a", Config()).close()
        ...     write_page(open_runs([Path(home) / "a"]), Path(home) / "page.html").name
        'page.html'
    """
    text = make_page(runs).render()
    aside = out.with_name(out.name + ".part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8")
        aside.replace(out)
    except OSError as error:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise ConfigError(
            f"cannot write the report {str(out)!r}: {error.strerror}; give --out FILE.html "
            f"in a folder that can be written to"
        ) from error
    return out


def open_runs(paths: Sequence[Path]) -> list[Run]:
    """Open run folders and label them; a folder given twice is opened once.

    Raises:
        ConfigError: a folder is missing or no run's.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from freewheel.config import Config
        >>> from freewheel.observe.run_folder import RunFolder
        >>> from freewheel.observe.report import open_runs
        >>> with tempfile.TemporaryDirectory() as home:
        ...     RunFolder(Path(home) / "a", Config()).close()
        ...     RunFolder(Path(home) / "b", Config()).close()
        ...     runs = open_runs([Path(home) / "a", Path(home) / "b", Path(home) / "a"])
        >>> [run.label for run in runs]
        ['a', 'b']
    """
    runs = [open_run(path) for path in {path.resolve(): path for path in paths}.values()]
    label_runs(runs)
    return runs


def make_page(runs: Sequence[Run]) -> Page:
    """Lay the sections out: what came of the runs, then why."""
    title = f"Run {runs[0].label}" if len(runs) == 1 else f"{len(runs)} runs"
    made = f"freewheel {__version__}, {datetime.now().strftime('%Y-%m-%d %H:%M')}"
    page = Page(f"{title} · Freewheel", f"<p>Written by {made}.</p>")
    _summaries(page, runs)
    _learning(page, runs)
    _time(page, runs)
    _traffic(page, runs)
    _asynchrony(page, runs)
    _verdicts(page, runs)
    _history(page, runs)
    _events(page, runs)
    _settings(page, runs)
    return page


def _summaries(page: Page, runs: Sequence[Run]) -> None:
    parts = [f'<div class="card">{summary_table(runs)}</div>']
    if any(run.virtual for run in runs):
        parts.append(
            '<p class="note">Times marked virtual are a simulator\'s, not those of a clock.</p>'
        )
    troubles = []
    for place, run in enumerate(runs):
        text = ""
        if run.error:
            text += f"<pre>{html.escape(run.error[:MAX_ERROR])}</pre>"
        if run.status == "unfinished":
            text += (
                '<p class="note">No summary.json: the run goes on, or was killed. '
                "Shown is what it had recorded.</p>"
            )
        text += "".join(f'<p class="note">{html.escape(note)}</p>' for note in run.notes)
        if text:
            troubles.append(f'<div class="card">{named(run, place)} {badge(run)}{text}</div>')
    if troubles:
        parts.append(f'<div class="stack" style="margin-top:14px">{"".join(troubles)}</div>')
    page.section("Summary", *parts)


def _learning(page: Page, runs: Sequence[Run]) -> None:
    found = learning_figures(runs)
    if not found:
        page.section("Learning", '<p class="note">No run has recorded a step.</p>')
        return
    choices = "".join(
        f'<label><input type="radio" name="axis" value="{key}"'
        f"{' checked' if place == 0 else ''}>{word}</label>"
        for place, (key, word) in enumerate(AXES)
    )
    page.section(
        "Learning",
        '<p class="note">Thin lines: training, the mean over processes and neighbouring steps. '
        "Lines with markers: scored on held-out data. Training time leaves out the start of "
        "processes and evaluation; bytes leave out evaluation and telemetry.</p>",
        f"<fieldset><legend>x axis</legend>{choices}</fieldset>",
        grid([page.plot(html.escape(title), figure) for title, figure in found]),
    )


def _time(page: Page, runs: Sequence[Run]) -> None:
    lanes, bars = [], []
    for place, run in enumerate(runs):
        line = timeline_figure(run)
        if line is not None:
            lanes.append(page.plot(named(run, place), line))
        if len(run.rows):
            bars.append(page.plot(f"{named(run, place)}: total time", totals_figure(run)))
            waits = waits_figure(run)
            if waits is not None:
                bars.append(page.plot(f"{named(run, place)}: who ← waited for whom", waits))
    if lanes:
        page.section(
            "Where time went",
            '<p class="note">Each lane is a process; its height is the share of the time spent in '
            "compute, wait and send. Grey: evaluation; blank: no step (start, end). Events lie "
            "above.</p>",
            grid(lanes),
            grid(bars),
        )


def _traffic(page: Page, runs: Sequence[Run]) -> None:
    cards = []
    for place, run in enumerate(runs):
        figure = traffic_figure(run)
        if figure is not None:
            by = "sender and receiver" if bytes_by_cut(run)[1] else "sender"
            cards.append(page.plot(f"{named(run, place)}: by {by}", figure))
    if cards:
        page.section("Bytes", grid(cards))


def _asynchrony(page: Page, runs: Sequence[Run]) -> None:
    cards = []
    for place, run in enumerate(runs):
        clocks = clocks_figure(run)
        if clocks is not None:
            cards.append(page.plot(f"{named(run, place)}: progress of workers", clocks))
    staleness = staleness_figure(runs, PAIRED_PX if cards else 300)
    if staleness is not None:
        cards.insert(0, page.plot("Staleness of updates", staleness))
    if cards:
        page.section("Workers apart", grid(cards))


def _verdicts(page: Page, runs: Sequence[Run]) -> None:
    cards = [
        page.plot(f"{named(run, place)}: {html.escape(title)}", figure)
        for place, run in enumerate(runs)
        for title, figure in verdict_figures(run)
    ]
    if cards:
        page.section("Monitors", grid(cards))


def _history(page: Page, runs: Sequence[Run]) -> None:
    cards = [
        page.plot(f"{named(run, place)}: {title}", figure)
        for place, run in enumerate(runs)
        for title, figure in history_figures(run)
    ]
    if cards:
        page.section(
            "History",
            '<p class="note">What each stage remembered of its own training before each jump by '
            "prediction. Prediction can pay where the path is straight.</p>",
            grid(cards),
        )


def _events(page: Page, runs: Sequence[Run]) -> None:
    cards = [
        f'<details class="card" open><summary>{named(run, place)}</summary>'
        f"{events_table(run)}</details>"
        for place, run in enumerate(runs)
        if run.events
    ]
    if cards:
        page.section("Decisions and events", f'<div class="stack">{"".join(cards)}</div>')


def _settings(page: Page, runs: Sequence[Run]) -> None:
    parts = []
    if len(runs) > 1:
        differ = settings_table(runs)
        if differ:
            parts.append(f'<div class="card"><h3>Where they differ</h3>{differ}</div>')
    for place, run in enumerate(runs):
        text = html.escape(tomli_w.dumps(run.config)) if run.config else "no config.toml"
        parts.append(
            f'<details class="card"><summary>{named(run, place)}: config.toml</summary>'
            f'<p class="note">{html.escape(str(run.path))}</p>'
            f'<pre class="quiet">{text}</pre></details>'
        )
    page.section("Settings", f'<div class="stack">{"".join(parts)}</div>')
