"""``freewheel simulate``: a run in virtual time, with as many workers as you like."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer


def simulate(
    file: Annotated[Path, typer.Argument(help="A TOML file, such as examples/simulate.toml.")],
    workers: Annotated[
        int | None, typer.Option(help="Number of workers; the same as --set layout.workers=N.")
    ] = None,
    stragglers: Annotated[
        str, typer.Option(metavar="COUNTxFACTOR", help="Slow workers: 2x4 is 2, each 4x slower.")
    ] = "none",
    transient: Annotated[
        str,
        typer.Option(metavar="PxFACTOR", help="Slow steps: 0.05x5 is 5% of them, 5x slower."),
    ] = "none",
    jitter: Annotated[float, typer.Option(help="Lognormal sigma of every step's time.")] = 0.1,
    link: Annotated[
        str | None,
        typer.Option(metavar="RATE,DELAY", help="100mbit,5ms; default: what [link] says."),
    ] = None,
    step_ms: Annotated[float, typer.Option(help="Time of a step of one full batch.")] = 10.0,
    server_ms: Annotated[float, typer.Option(help="Work of the server for one push.")] = 0.0,
    detect_ms: Annotated[float, typer.Option(help="Time until a death is noticed.")] = 1000.0,
    death: Annotated[
        list[str], typer.Option(metavar="RANK@SECONDS", help="A worker dies: 3@1.5.")
    ] = [],  # noqa: B006 - typer reads the default, nobody writes to it
    join: Annotated[
        list[str], typer.Option(metavar="RANK@SECONDS", help="A worker joins: 32@1.5.")
    ] = [],  # noqa: B006 - as above
    each: Annotated[
        bool,
        typer.Option(
            "--each", help="Every worker takes its own steps; else all share one budget of steps."
        ),
    ] = False,
    cost_only: Annotated[
        bool, typer.Option("--cost-only", help="No gradients: time, bytes and waiting only.")
    ] = False,
    overrides: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the file."),
    ] = [],  # noqa: B006 - as above
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the summary as JSON, and nothing else, on stdout."),
    ] = False,
) -> None:
    """Run FILE in virtual time: real gradients, simulated computers and network.

    Workers of a server, replicas, or the stages of a pipeline.
    """
    from freewheel.config import load_config
    from freewheel.errors import ConfigError
    from freewheel.launch.local import threads_per_process
    from freewheel.launch.resolve import resolve
    from freewheel.observe.progress import Progress, result_table
    from freewheel.runtime.context import steps_per_epoch, total_steps
    from freewheel.runtime.pieces import Given, Pieces
    from freewheel.runtime.virtual.pipeline import simulate_pipeline
    from freewheel.simulate import Compute, Fault, LinkSpec, Stragglers, Transient
    from freewheel.simulate.run import Virtual
    from freewheel.simulate.run import simulate as run

    given = overrides if workers is None else [*overrides, f"layout.workers={workers}"]
    config = load_config(file, given)
    virtual = Virtual(
        compute=Compute(
            step_ms * 1e-3,
            Stragglers.parse(stragglers),
            Transient.parse(transient),
            jitter,
            config.run.seed,
        ),
        link=None if link is None else LinkSpec.parse(link),
        faults=(
            *(Fault.parse("death", text) for text in death),
            *(Fault.parse("join", text) for text in join),
        ),
        server_s=server_ms * 1e-3,
        detect_s=detect_ms * 1e-3,
        shared=not each,
        cost_only=cost_only,
    )
    path, say = (str(file.resolve().parent), str(Path.cwd())), Progress().say
    if config.layout.kind == "pipeline":
        if workers is not None:
            raise ConfigError(
                f"--workers {workers}: a pipeline has stages; use --set layout.stages={workers}"
            )
        config, _, _ = resolve(config, Given(), path)
        threads = threads_per_process(config.layout.stages, config.run.threads)
        folder, summary = simulate_pipeline(
            config, Pieces(config, path=path), virtual, say, threads
        )
    else:
        folder, summary = run(
            config,
            Pieces(config, path=path),
            lambda config, num_samples: total_steps(
                config,
                steps_per_epoch(
                    num_samples,
                    config.data.batch_size,
                    config.layout.workers,
                    config.train.accumulate,
                ),
            ),
            virtual,
            say,
        )
    summary = {**summary, "run": str(folder)}
    if as_json:
        sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    else:
        result_table(summary)
