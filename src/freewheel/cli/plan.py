"""``freewheel plan``: measure, simulate, recommend a protocol."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer


def plan(
    file: Annotated[
        Path, typer.Argument(help="A TOML file, such as examples/parameter_server.toml.")
    ],
    seconds: Annotated[float, typer.Option(help="About how long to measure.")] = 30.0,
    workers: Annotated[
        int | None, typer.Option(help="Number of workers; the same as --set layout.workers=N.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The page with the picture.")] = Path("plan.html"),
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the file."),
    ] = [],  # noqa: B006 - typer reads the default, nobody writes to it
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan as JSON, and nothing else, on stdout.")
    ] = False,
) -> None:
    """Say which protocol suits FILE here: time, bytes and waiting of each, and how each scales.

    Real processes are timed for a while; protocols are then simulated with those times.
    """
    from freewheel.config import load_config
    from freewheel.errors import ConfigError
    from freewheel.observe.progress import Progress
    from freewheel.plan.measure import measure
    from freewheel.plan.predict import command, predict, recommend
    from freewheel.plan.show import page, print_plan
    from freewheel.runtime.length import length_of
    from freewheel.runtime.pieces import Pieces

    given = overrides if workers is None else [*overrides, f"layout.workers={workers}"]
    config = load_config(file, given)
    path = (str(file.resolve().parent), str(Path.cwd()))
    found = measure(config, path, seconds, Progress().say)
    steps = length_of(config, len(Pieces(config, path=path).source().train))
    batch = config.data.batch_size * config.train.accumulate
    layout = config.layout
    predictions = predict(found, layout.workers, layout.servers, steps, batch)
    chosen = recommend(predictions)
    words = command(str(file), chosen)
    try:
        out.write_text(page(found, predictions, chosen, words), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {str(out)!r}: {error}; give another --out") from error
    if as_json:
        text = {
            "recommended": chosen.name,
            "command": words,
            "page": str(out),
            "measured": {
                "step_s": found.step_s,
                "factors": found.factors,
                "slow_share": found.slow_share,
                "rate_mbit": found.link.rate_mbit,
                "delay_ms": found.link.delay_ms,
                "server_s": found.server_s,
                "num_bytes": found.num_bytes,
            },
            "protocols": [asdict(each) for each in predictions],
        }
        sys.stdout.write(json.dumps(text, indent=2) + "\n")
        return
    print_plan(found, predictions, chosen, words)
