"""Runs as TensorBoard events (``pip install freewheel[tensorboard]``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from freewheel.errors import ConfigError
from freewheel.observe.report.columns import number
from freewheel.observe.report.run import Run

#: Columns written for each process, as ``seconds/compute/stage 0``.
OF_PROCESS = {
    "compute_s": "seconds/compute",
    "wait_s": "seconds/wait",
    "send_s": "seconds/send",
    "bytes_sent": "bytes sent",
    "staleness": "staleness",
    "version": "version",
}
Scalar = tuple[str, int, float, float]


def write_tensorboard(runs: Sequence[Run], directory: Path) -> list[Path]:
    """Write one folder of events for each run: ``tensorboard --logdir DIR`` shows them together.

    Scalars: ``train/loss`` and each training metric (mean over processes), ``scored/...`` of
    evaluations, and times and bytes of each process. The wall time of an event is its time in the
    run, counted from when the run's configuration was written.

    Args:
        runs: opened and labelled.
        directory: made where it is missing. Earlier events there stay, as TensorBoard is used to.

    Returns:
        The folder of each run.

    Raises:
        ConfigError: TensorBoard is not installed, or the events cannot be written.
    """
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise ConfigError(
            f"--tensorboard needs TensorBoard, which is not installed ({error}); "
            f"run: pip install freewheel[tensorboard]"
        ) from error
    folders = []
    for run in runs:
        folder = directory / _folder_name(run.label)
        try:
            began = _began(run)
            writer = EventFileWriter(str(folder))
            for tag, step, at_s, value in scalars(run):
                point = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
                writer.add_event(Event(wall_time=began + at_s, step=step, summary=point))
            writer.close()
        except OSError as error:
            raise ConfigError(
                f"cannot write TensorBoard events into {str(folder)!r}: {error.strerror}; give "
                f"--tensorboard DIR, a folder that can be written to"
            ) from error
        folders.append(folder)
    return folders


def scalars(run: Run) -> Iterator[Scalar]:
    """Yield tag, step, seconds since the run began, and value, of all that is plotted."""
    rows = run.rows
    steps = np.unique(rows["step"])
    place = np.searchsorted(steps, rows["step"])
    for name, column in {"loss": rows["loss"], **rows.metrics, "lr": rows["lr"]}.items():
        there = np.isfinite(column)
        weight = there * np.maximum(np.nan_to_num(rows["samples"]), 1e-9)
        total = np.bincount(place, weight, minlength=len(steps))
        value = np.bincount(place, np.nan_to_num(column) * weight, minlength=len(steps))
        at_s = np.zeros(len(steps))
        np.maximum.at(at_s, place, run.at_s)
        for i in np.flatnonzero(total):
            yield f"train/{name}", int(steps[i]), float(at_s[i]), float(value[i] / total[i])
    for process, who in enumerate(rows.processes):
        mine = np.flatnonzero(rows.process == process)
        for column_name, tag in OF_PROCESS.items():
            column = rows[column_name]
            for i in mine[np.isfinite(column[mine])]:
                yield f"{tag}/{who}", int(rows["step"][i]), float(run.at_s[i]), float(column[i])
    for event in run.events:
        metrics, step = event.get("metrics"), number(event.get("step"))
        if event["event"] == "evaluated" and isinstance(metrics, Mapping) and np.isfinite(step):
            at_s_of_event = float(np.nan_to_num(run.event_at_s(event)))
            for name, value_told in metrics.items():
                if np.isfinite(number(value_told)):
                    yield f"scored/{name}", int(step), at_s_of_event, number(value_told)


def _began(run: Run) -> float:
    """Return when the configuration was written, in seconds since the epoch."""
    for name in ("config.toml", "metrics.jsonl"):
        if (run.path / name).is_file():
            return (run.path / name).stat().st_mtime
    return 0.0


def _folder_name(label: str) -> str:
    """Return a label as the name of one folder, wherever it would lead."""
    kept = "".join(c if c.isalnum() or c in " ._-()" else "_" for c in label)
    return kept.lstrip(".") or "run"
