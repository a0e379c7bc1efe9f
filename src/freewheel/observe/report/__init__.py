"""``freewheel report``: what runs did, as one HTML page that opens without a network.

::

    columns.py    metrics.jsonl -> one array a column
    run.py        a run folder -> Run: settings, summary, columns, events, status
    thin.py       100,000 points -> a few hundred
    style.py      colours, axes, numbers for a person
    learning.py   metrics, bytes and learning rate against time, bytes and steps
    spent.py      compute, wait, send: totals, who waited for whom
    timeline.py   the same on a time axis, with the events
    traffic.py    bytes by cut or peer
    asynchrony.py staleness, clocks and versions of workers
    remembered.py what stages that coast remember of their own training
    verdicts.py   what monitors measured against their thresholds
    tables.py     summaries, settings, events
    page.py       sections -> HTML
    build.py      runs -> page
"""

from freewheel.observe.report.build import open_runs, write_page, write_report
from freewheel.observe.report.run import Run, open_run

__all__ = ["Run", "open_run", "open_runs", "write_page", "write_report"]
