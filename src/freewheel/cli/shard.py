"""``freewheel shard``: divide a data set among workers, out of core."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer


def shard(
    source: Annotated[
        Path,
        typer.Argument(
            help="A .npz, .npy, idx(.gz), .csv or .parquet file, a folder of images (one folder "
            "per class), a run's .toml file, or the name of a data set."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; it must not exist yet.")],
    strategy: Annotated[
        str,
        typer.Option(
            help="balanced, class_cluster, stratified, distribution_aware, random, contiguous, "
            "label_sorted, dirichlet."
        ),
    ] = "balanced",
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 12,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    speeds: Annotated[
        str | None,
        typer.Option(metavar="V,V,...", help="Measured speed of each worker: sizes follow it."),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(help="Array (npz) or columns, comma-separated, that hold the features."),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="Array (npz), file (npy, idx) or column that holds the labels."),
    ] = None,
    settings: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the strategy: --set bins=5."),
    ] = [],  # noqa: B006 - typer reads the default, nobody writes to it
    embedding: Annotated[
        str | None,
        typer.Option(help="What is compared: pca, raw, or a model's file (.pt2, .pt, .ts)."),
    ] = None,
    standardise: Annotated[
        bool | None,
        typer.Option(
            "--standardise/--no-standardise",
            help="Bring every feature to unit variance first; by default for tables only.",
        ),
    ] = None,
    divide_by: Annotated[
        float, typer.Option(help="Divide features by this first: 255 for pixels.")
    ] = 1.0,
    image_size: Annotated[int, typer.Option(help="Pixels each way images are scaled to.")] = 32,
    model: Annotated[
        Path | None,
        typer.Option(help="A model's file (.pt2, .pt, .ts): report its gradient dispersion."),
    ] = None,
    materialise: Annotated[
        bool, typer.Option("--materialise", help="Write each worker's samples, not only indices.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a folder of shards that is there already.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, and nothing else, on stdout.")
    ] = False,
) -> None:
    """Divide SOURCE among workers so that all see the same distribution; write shards to OUT."""
    from freewheel.errors import StoppedError
    from freewheel.sharding.job import Job, run_job

    job = Job(
        source=_opened(source),
        out=out,
        strategy=strategy,
        workers=workers,
        seed=seed,
        settings=dict(_setting(text) for text in settings),
        speeds=None if speeds is None else _numbers(speeds),
        features=features,
        labels=labels,
        image_size=image_size,
        divide_by=divide_by,
        embedding=embedding,
        standardise=standardise,
        model=model,
        materialise=materialise,
        overwrite=overwrite,
    )
    stop = _Stop()  # so that nothing half written is left
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _Bar() as bar:

            def watch(what: str, done: int, total: int | None) -> None:
                stop.look()
                bar.watch(what, done, total)

            report = run_job(job, watch)
    except KeyboardInterrupt:
        raise StoppedError(f"stopped; nothing was written to {out}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if as_json:
        sys.stdout.write(json.dumps({**report, "out": str(out)}, indent=1, default=repr) + "\n")
    else:
        _table(report, out)


def _opened(source: Path) -> Any:
    """Return the training part of a run's data, or of a data set by name; else the path."""
    from freewheel.errors import DataError

    name = str(source)
    if source.suffix.lower() != ".toml":
        if source.exists():
            return source
        from freewheel.streams import datasets

        if name not in datasets.names():
            raise DataError(
                f"there is no file or folder {name!r}, and no data set of that name; known are "
                f"{', '.join(datasets.names())}"
            )
    from freewheel.config import load_config, parse_config
    from freewheel.runtime.pieces import Pieces
    from freewheel.streams.divided import to_divide

    is_file = source.suffix.lower() == ".toml"
    config = load_config(source) if is_file else parse_config({"data": {"name": name}})
    path = (str(source.resolve().parent), str(Path.cwd()))
    found = Pieces(config, path=path).source()
    return to_divide(found.name, found.train)


class _Stop:
    """Ctrl-C or SIGTERM, remembered: a library that is being imported may swallow the exception."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self, _number: int, _frame: Any) -> NoReturn:
        self.asked = True
        raise KeyboardInterrupt

    def look(self) -> None:
        """Stop if that was asked for."""
        if self.asked:
            raise KeyboardInterrupt


def _setting(text: str) -> tuple[str, Any]:
    from freewheel.errors import ConfigError

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"--set takes KEY=VALUE, got {text!r}")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _numbers(text: str) -> list[float]:
    from freewheel.errors import ConfigError

    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--speeds takes numbers separated by commas, got {text!r}") from None


class _Bar:
    """A progress bar on stderr, one line for each pass over the samples."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn

        self._progress = Progress(
            "{task.description}",
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def watch(self, what: str, done: int, total: int | None) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done)


def _table(report: dict[str, Any], out: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{report['strategy']}, {report['workers']} workers", show_header=False)
    table.add_row("samples", f"{report['num_samples']:,}")
    table.add_row("smallest, largest shard", f"{min(report['sizes']):,}, {max(report['sizes']):,}")
    if report["labels"]:
        table.add_row("label total variation, mean", f"{report['labels']['mean']:.4g}")
    for key, name in (("features", "feature discrepancy"), ("gradients", "gradient dispersion")):
        part = report[key]
        if part:
            lower = part["times_lower"]
            shown = "" if lower is None else f" ({lower:.3g} times lower than random)"
            table.add_row(name, f"{part['mean']:.4g}{shown}")
    console = Console()
    console.print(table)
    for name in ("manifest.json", "report.html"):
        console.print(str(out / name), soft_wrap=True, highlight=False)
