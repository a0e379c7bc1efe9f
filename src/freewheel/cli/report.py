"""``freewheel report``: what runs did, as a page, as CSV, or for TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders, such as runs/quickstart-DATE."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Where the page goes. Default: report.html, in the folder of the run where there "
            "is one run, else here.",
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write metrics.csv, events.csv and runs.csv into DIR."),
    ] = None,
    tensorboard: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write TensorBoard events into DIR, a folder a run."),
    ] = None,
) -> None:
    """Show runs side by side on one HTML page that opens without a network.

    With --csv or --tensorboard the page is written only where --out asks for it.
    """
    from freewheel.observe.report import open_runs, write_page

    opened = open_runs(runs)
    written: list[Path] = []
    if csv is not None:
        from freewheel.observe.csv_export import write_csv

        written += write_csv(opened, csv)
    if tensorboard is not None:
        from freewheel.observe.tensorboard import write_tensorboard

        written += write_tensorboard(opened, tensorboard)
    if out is None and not written:
        out = (opened[0].path if len(opened) == 1 else Path()) / "report.html"
    if out is not None:
        written.append(write_page(opened, out))
    for path in written:
        typer.echo(path)
