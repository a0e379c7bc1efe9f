"""``freewheel launch``: a script of the user's own, as several workers and servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def launch(
    script: Annotated[Path, typer.Argument(help="A script that calls freewheel.join.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Arguments of the script, behind --.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that run the loop.")] = 2,
    servers: Annotated[int, typer.Option(min=1, help="Processes that hold the parameters.")] = 1,
    protocol: Annotated[str, typer.Option(help="When workers wait: bsp, ssp, asp, ...")] = "bsp",
    staleness: Annotated[
        int | None, typer.Option(help="The bound of ssp, in steps: protocol.staleness.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting: --set protocol.k=8."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")
    ] = False,
) -> None:
    """Run SCRIPT as several workers whose parameters are on servers, on this machine."""
    from freewheel.config import parse_config
    from freewheel.launch.script import launch_script
    from freewheel.launch.settings import parse_settings
    from freewheel.observe.progress import result_table

    values: dict[str, Any] = parse_settings(overrides or [], "--set")
    settings = {} if staleness is None else {"staleness": staleness}
    values["protocol"] = {"name": protocol, **settings, **values.get("protocol", {})}
    layout = {"kind": "server", "workers": workers, "servers": servers}
    values["layout"] = {**values.get("layout", {}), **layout}
    values.setdefault("run", {}).setdefault("name", script.stem)
    config = parse_config(values, "freewheel launch")
    show = (lambda _: None) if as_json else typer.echo
    folder, summary = launch_script(config, script, arguments or [], show, quiet=as_json)
    summary = {**summary, "run": str(folder)}
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        result_table(summary)
