"""The ``freewheel`` command."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from freewheel._version import __version__
from freewheel.cli.compare import compare
from freewheel.cli.export import export
from freewheel.cli.launch import launch
from freewheel.cli.plan import plan
from freewheel.cli.report import report
from freewheel.cli.shard import shard
from freewheel.cli.simulate import simulate
from freewheel.errors import EXIT_INTERRUPTED, FreewheelError, StoppedError

app = typer.Typer(
    name="freewheel",
    help="Train PyTorch models across machines; data decides when they must talk.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

FileArgument = Annotated[
    Path, typer.Argument(help="A TOML file, such as examples/quickstart.toml.")
]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting: --set layout.stages=3."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the summary as JSON, and nothing else, on stdout.")
]

InsecureOption = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Allow addresses beyond this machine, although links have no keys yet."
    ),
]


def _insecure(asked: bool) -> list[str]:
    return ["link.insecure=true"] if asked else []


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"freewheel {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Take options that belong to no command."""


@app.command()
def train(
    file: FileArgument,
    overrides: SetOption = [],  # noqa: B006 - typer reads the default, nobody writes to it
    as_json: JsonOption = False,
    insecure: InsecureOption = False,
) -> None:
    """Train as FILE says, in several processes of this machine."""
    from freewheel.config import load_config
    from freewheel.launch.session import CHILD, Origin, run
    from freewheel.models.stepping import leave_compiler_out

    leave_compiler_out()
    config = load_config(file, [*overrides, *_insecure(insecure)])
    origin = Origin(CHILD, (str(file.resolve().parent), str(Path.cwd())))
    _show(*run(config, origin=origin), as_json=as_json)


@app.command()
def resume(
    run_dir: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run folder, or one of its checkpoints.")
    ],
    overrides: SetOption = [],  # noqa: B006 - as in train
    as_json: JsonOption = False,
    insecure: InsecureOption = False,
) -> None:
    """Go on with a run from its newest checkpoint, also with other stages or workers."""
    from freewheel.launch.earlier import find_run
    from freewheel.launch.session import resume as go_on
    from freewheel.models.stepping import leave_compiler_out

    leave_compiler_out()
    earlier = find_run(run_dir, [*overrides, *_insecure(insecure)])
    _show(*go_on(earlier, earlier.config), as_json=as_json)


@app.command()
def protocols() -> None:
    """List the protocols: whom they wait for, messages and bytes per step, what a death does."""
    from freewheel.cli.explain import protocol_table

    protocol_table()


@app.command()
def explain(name: Annotated[str, typer.Argument(help="A protocol, such as vanilla.")]) -> None:
    """Explain one protocol in a paragraph, with its source."""
    from freewheel.cli.explain import explain_protocol

    explain_protocol(name)


app.command()(simulate)
app.command()(shard)
app.command()(export)
app.command()(launch)
app.command()(report)
app.command()(compare)
app.command()(plan)


@app.command()
def doctor() -> None:
    """Check this machine: versions, threads, ports, a two-process echo and an all-reduce."""
    from freewheel.cli.doctor import examine

    examine()


def main() -> Any:
    """Run the command line; return the exit code that the errors document."""
    try:
        code = app(standalone_mode=False)
        if code == EXIT_INTERRUPTED:  # typer makes a return value of Ctrl-C
            sys.stderr.write("interrupted\n")
        return code
    except StoppedError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)
    except FreewheelError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(EXIT_INTERRUPTED)
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        _usage(error)


def _show(folder: Path, summary: dict[str, Any], as_json: bool) -> None:
    from freewheel.observe.progress import result_table

    summary = {**summary, "run": str(folder)}
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
    else:
        result_table(summary)


def _usage(error: Exception) -> None:
    """Show a mistake on the command line as typer would; let anything else keep its traceback."""
    show, code = getattr(error, "show", None), getattr(error, "exit_code", None)
    if show is None or code is None:
        raise error
    show()
    sys.exit(code)


if __name__ == "__main__":
    sys.exit(main())
