"""One run on this machine, from its configuration to its summary."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freewheel.config import Config
from freewheel.errors import (
    CheckpointError,
    ConfigError,
    FreewheelError,
    StoppedError,
    WorkerError,
)
from freewheel.launch.earlier import Earlier
from freewheel.launch.local import LocalProcesses, threads_per_process
from freewheel.launch.resolve import resolve
from freewheel.launch.roles import members
from freewheel.launch.signals import StopSignals
from freewheel.observe.board import Board
from freewheel.observe.progress import Progress
from freewheel.observe.run_folder import RunFolder, read_origin
from freewheel.observe.summary import make_summary
from freewheel.runtime.checkpoints.checkpoint import Checkpoint, drop_half_saved
from freewheel.runtime.checkpoints.final import drop_other_finals
from freewheel.runtime.coordinator import Coordinator
from freewheel.runtime.job import Job
from freewheel.runtime.links import open_link
from freewheel.runtime.pieces import Given
from freewheel.runtime.servers.served import processes_of, served_summary
from freewheel.runtime.switching.led import switch_summary
from freewheel.transport.base import COORDINATOR

CHILD = (sys.executable, "-m", "freewheel.launch.child")


@dataclass(frozen=True)
class Origin:
    """How children of a run come by the user's objects.

    Args:
        argv: the command that each child runs.
        path: folders with the user's modules.
        call: which ``train`` call of a script this is; -1 without one.
        earlier: run folders of the calls before it.
        script: the script that each child runs again; empty where it imports what it needs.
    """

    argv: Sequence[str] = CHILD
    path: Sequence[str] = ()
    call: int = -1
    earlier: Sequence[str] = field(default_factory=tuple)
    script: str = ""


@dataclass(frozen=True)
class _Plan:
    """What an attempt at a run starts from."""

    config: Config
    origin: Origin
    dataset: str
    steps: int
    threads: int


def run(
    config: Config, given: Given | None = None, origin: Origin | None = None, quiet: bool = False
) -> tuple[Path, dict[str, Any]]:
    """Train as the configuration says.

    Args:
        config: what to do.
        given: objects in place of names in the configuration.
        origin: how children come by them.
        quiet: show no progress.

    Returns:
        The run folder and the summary.

    Raises:
        FreewheelError: what went wrong, with the exit code that it stands for.
        StoppedError: a person stopped it.
    """
    plan = _plan(config, given or Given(), origin or Origin(), None)
    with StopSignals() as signals:
        # an address that cannot be had is found out before there is a folder
        open_link(COORDINATOR, bytes(8), plan.config).close(0)
        folder = RunFolder.create(plan.config)
        folder.origin(plan.origin.path, plan.origin.script)
        return _attempts(plan, folder, None, Progress(quiet), signals)


def resume(
    earlier: Earlier,
    config: Config,
    given: Given | None = None,
    origin: Origin | None = None,
    quiet: bool = False,
) -> tuple[Path, dict[str, Any]]:
    """Go on with a run from a checkpoint, in the same folder.

    Args:
        earlier: the run, as ``find_run`` gives it.
        config: ``earlier.config``, or one with other settings.
        given: objects in place of names in the configuration.
        origin: how children come by them; by default as in the run before.
        quiet: show no progress.

    Raises:
        ConfigError: a script made the run's model, and ``given`` has none.
        CheckpointError: the checkpoint is damaged, or does not fit.
    """
    if origin is None:
        path, script = read_origin(earlier.run_dir)
        if script:
            raise ConfigError(
                f"the model or data of {str(earlier.run_dir)!r} were made by {script}; go on from "
                f"there: freewheel.train(..., resume={str(earlier.run_dir)!r})"
            )
        origin = Origin(path=tuple(dict.fromkeys((*path, str(Path.cwd())))))
    plan = _plan(config, given or Given(), origin, earlier.checkpoint)
    with StopSignals() as signals:
        folder = RunFolder(earlier.run_dir, plan.config, resume_at=earlier.checkpoint.step)
        folder.origin(plan.origin.path, plan.origin.script)
        folder.event("resumed", step=earlier.checkpoint.step)
        return _attempts(plan, folder, earlier.checkpoint, Progress(quiet), signals)


def _plan(config: Config, given: Given, origin: Origin, checkpoint: Checkpoint | None) -> _Plan:
    config, dataset, steps = resolve(config, given, origin.path, checkpoint)
    threads = threads_per_process(len(members(config)), config.run.threads)
    return _Plan(config, origin, dataset, steps, threads)


def _attempts(
    plan: _Plan,
    folder: RunFolder,
    checkpoint: Checkpoint | None,
    progress: Progress,
    signals: StopSignals,
) -> tuple[Path, dict[str, Any]]:
    """Run to the end; after a death, where that is wanted, again from the newest checkpoint."""
    names = [f"{role} {rank}" for role, rank in members(plan.config)]
    progress.say(
        f"{folder.path}: {plan.config.protocol_name}, {plan.config.layout.kind} of {len(names)} "
        f"processes with {plan.threads} thread{'s' if plan.threads > 1 else ''} each, "
        f"data {plan.dataset}"
    )
    for restarts in range(plan.config.run.max_restarts + 1):
        attempt = _Attempt(plan, folder, checkpoint, progress, signals)
        try:
            return folder.path, attempt.run()
        except WorkerError as error:
            again = plan.config.run.on_death == "restart"
            if not again or restarts == plan.config.run.max_restarts:
                raise
            checkpoint = attempt.leader.saves.last or checkpoint
            step = checkpoint.step if checkpoint else 0
            why = str(error).splitlines()[0]
            progress.say(f"{why}; going on from step {step}")
            folder = RunFolder(folder.path, plan.config, resume_at=step)
            folder.event("restarted", step=step, because=why)
    raise AssertionError("the last attempt returns or raises")


class _Attempt:
    """The processes of a run, from their start to their end."""

    def __init__(
        self,
        plan: _Plan,
        folder: RunFolder,
        checkpoint: Checkpoint | None,
        progress: Progress,
        signals: StopSignals,
    ) -> None:
        config, run_id = plan.config, secrets.token_bytes(8)
        self.plan, self.folder, self.progress, self.signals = plan, folder, progress, signals
        self.start = time.monotonic()
        with signals.held():
            self.link = open_link(COORDINATOR, run_id, config)
            jobs = _jobs(plan, folder, self.link.address, run_id, checkpoint)
            names = [job.name for job in jobs]
            own = processes_of(names, config)
            logs = {name: folder.log_path(name) for name in own}
            jobs = [job for job in jobs if job.name in own]
            self.board = Board(plan.steps, names)
            self.processes = LocalProcesses(plan.origin.argv, jobs, logs, plan.threads)
            self.leader = Coordinator(
                self.link,
                names,
                self.processes,
                folder,
                self.board,
                progress,
                config,
                signals.asked,
            )

    def run(self) -> dict[str, Any]:
        """Lead the processes, end them, write the summary, however it went; return it."""
        summary: dict[str, Any] = {}
        try:
            with self.progress.shown():
                self.leader.gather()
                self.leader.lead()
            summary = self._summary()
            drop_other_finals(self.folder.path, self.leader.members)
            _check_end(self.leader, self.plan, self.folder, summary)
            self._end(summary, grace_s=3.0)
        except BaseException as error:
            with self.signals.held():
                summary = _failure(self.plan, self.board, error, summary)
                self.leader.tell_all("stop")
                with suppress(FreewheelError):  # the first error is the one to show
                    self._end(summary, grace_s=3.0 if isinstance(error, StoppedError) else 0.5)
            raise
        return summary

    def _summary(self) -> dict[str, Any]:
        done = self.leader.done
        summary = make_summary(
            self.plan.config,
            self.plan.dataset,
            done,
            self.leader.evaluations,
            self.board.loss,
            max(int(totals["step"]) for totals in done.values()),
            time.monotonic() - self.start,
            self.plan.threads,
        )
        return {**summary, **served_summary(done), **switch_summary(self.plan.config, done)}

    def _end(self, summary: dict[str, Any], grace_s: float) -> None:
        with self.signals.held():
            self.processes.stop(grace_s)
            self.link.close(0.1)  # nobody is there any more
            for rendezvous in self.folder.path.glob("rendezvous-*"):
                rendezvous.unlink(missing_ok=True)
            drop_half_saved(self.folder.path / "checkpoints")
            try:
                self.folder.summary({**summary, "run": str(self.folder.path)})
            finally:
                self.folder.close()


def _jobs(
    plan: _Plan, folder: RunFolder, address: str, run_id: bytes, checkpoint: Checkpoint | None
) -> list[Job]:
    return [
        Job(
            role,
            rank,
            run_id.hex(),
            str(folder.path.resolve()),
            address,
            tuple(plan.origin.path),
            plan.origin.call,
            tuple(plan.origin.earlier),
            resume_from="" if checkpoint is None else str(checkpoint.path.resolve()),
        )
        for role, rank in members(plan.config)
    ]


def _check_end(
    leader: Coordinator, plan: _Plan, folder: RunFolder, summary: dict[str, Any]
) -> None:
    """Raise where a run ended in order, but before its time or without its last checkpoint."""
    early = f"stopped at step {summary['steps']} of {plan.steps}"
    if leader.saves.error is not None:
        how = early if summary["steps"] < plan.steps else "the run came to its end"
        raise CheckpointError(f"{how}, but its last checkpoint is not there: {leader.saves.error}")
    if summary["steps"] < plan.steps:
        saved = leader.saves.last
        if saved is None:
            raise StoppedError(f"{early}, and not saved; what was recorded is in {folder.path}")
        raise StoppedError(
            f"{early}, saved in {saved.path}; go on with: freewheel resume {folder.path}"
        )


def _failure(
    plan: _Plan, board: Board, error: BaseException, summary: dict[str, Any]
) -> dict[str, Any]:
    interrupted = isinstance(error, (KeyboardInterrupt, StoppedError))
    config = plan.config
    return {
        "protocol": config.protocol_name,
        "dataset": plan.dataset,
        "model": config.model.name or config.model.factory,
        "seed": config.run.seed,
        "world_size": config.layout.world_size,
        "steps": board.step,
        "samples": board.samples,
        "train_loss": board.loss,
        **summary,
        "status": "interrupted" if interrupted else "failed",
        "error": str(error) if isinstance(error, FreewheelError) else repr(error),
    }
