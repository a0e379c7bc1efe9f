"""``freewheel compare``: arms and controls, paired by seed, in one table."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer


def compare(
    file: Annotated[
        Path, typer.Argument(help="A TOML file with arms, such as examples/compare.toml.")
    ],
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N or A,B,...", help="How many seeds (0, 1 ...), or which."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of results; default: RUN.DIR/RUN.NAME-compare."),
    ] = None,
    validation: Annotated[
        bool, typer.Option("--validation", help="Score the validation part: to tune, not report.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run what crashed or diverged again.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run everything again, also what is done.")
    ] = False,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, for all arms."),
    ] = [],  # noqa: B006 - typer reads the default, nobody writes to it
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the results as JSON on stdout, and no table.")
    ] = False,
) -> None:
    """Run the arms of FILE and their controls for every seed; write one table, with intervals.

    Started again, it goes on where it stopped.
    """
    from freewheel.compare.arms import read_plan
    from freewheel.compare.report import write_all
    from freewheel.compare.runner import Runner
    from freewheel.compare.show import show
    from freewheel.compare.table import Table
    from freewheel.errors import StoppedError
    from freewheel.observe.progress import Progress

    plan = read_plan(file, None if seeds is None else _seeds(seeds), overrides)
    folder = out or plan.default_folder
    if fresh:
        (folder / "units.jsonl").unlink(missing_ok=True)
    progress = Progress()
    runner = Runner(
        plan,
        folder,
        "validation" if validation else "test",
        progress.say,
        retry_failed,
    )
    progress.say(runner.outline())
    outcome = runner.run()
    table = Table(outcome)
    given = {"--seeds": seeds, "--out": out}
    words = ["freewheel", "compare", str(file)]
    words += [word for key, value in given.items() if value for word in (key, str(value))]
    words += [word for override in overrides for word in ("--set", override)]
    command = shlex.join([*words, *(["--validation"] if validation else [])])
    results = write_all(table, folder, command)
    if as_json:
        sys.stdout.write(json.dumps(results) + "\n")
    else:
        show(table, folder)
    if outcome.interrupted:
        raise StoppedError(f"stopped; go on with: {command}")


def _seeds(text: str) -> int | tuple[int, ...]:
    from freewheel.errors import ConfigError

    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--seeds must be how many, as in 10, or which, as in 3,5,8; got {text!r}"
        ) from None
    return numbers if "," in text else numbers[0]
