"""``freewheel export``: the trained model as plain files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the files go.")],
    parameters_only: Annotated[
        bool, typer.Option("--parameters-only", help="No torch.export program; reads no data.")
    ] = False,
) -> None:
    """Write a run's trained model, also of one in progress, as safetensors and torch.export."""
    from freewheel.export import export as write

    made = write(run_dir, out, with_program=not parameters_only)
    typer.echo(f"step {made.step}")
    for file in (made.parameters, made.program):
        if file is not None:
            typer.echo(f"{file} ({file.stat().st_size:,} bytes)")
