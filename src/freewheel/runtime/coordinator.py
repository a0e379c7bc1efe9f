"""Leads a run: gathers its processes, listens to them, ends them, and says how it went."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from freewheel.config import Config
from freewheel.errors import FreewheelError, LinkTimeoutError, WorkerError
from freewheel.observe.board import Board
from freewheel.observe.progress import Progress
from freewheel.observe.run_folder import RunFolder
from freewheel.runtime.checkpoints.saves import Saves
from freewheel.runtime.deaths import Failures
from freewheel.runtime.role import Wish
from freewheel.runtime.servers.served import may_go, totals_of_the_dead
from freewheel.runtime.switching.led import listener, savers, switches
from freewheel.transport.base import TELEMETRY, Link, Message

#: How often the coordinator looks whether all processes still live.
POLL_S = 0.1
#: How long to listen, after a first failure, for the one that caused it.
LAST_WORD_S = 0.5


class Processes(Protocol):
    """The processes of a run, however they were started."""

    def pids(self) -> dict[str, int]:
        """Return the process id of each by name."""
        ...

    def alive(self) -> list[str]:
        """Return the names of those that run."""
        ...

    def exits(self) -> list[Any]:
        """Return those that have ended since the last call: name, pid, code."""
        ...

    def stop(self, grace_s: float = 3.0) -> None:
        """End all."""
        ...


class Coordinator:
    """Runs in the process that a person started.

    Args:
        link: named ``"coordinator"``.
        members: names of the processes that will join.
        processes: to see who lives, and to end them.
        folder: where records go.
        board: what is known of the run.
        progress: what the person sees.
        config: the run's.
        asked_to_stop: whether a person wants the run to end; raises ``KeyboardInterrupt`` where it
            must end at once.
    """

    def __init__(
        self,
        link: Link,
        members: list[str],
        processes: Processes,
        folder: RunFolder,
        board: Board,
        progress: Progress,
        config: Config,
        asked_to_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.link = link
        self.members = members
        self.processes = processes
        self.folder = folder
        self.board = board
        self.progress = progress
        self.config = config
        self.stopping = False
        self._ending = False
        self._all_joined = False
        #: Servers that have yet to hear of a worker's death, with its rank.
        self._untold: list[tuple[str, int]] = []
        self._asked_to_stop = asked_to_stop
        self.saves = Saves(folder.path / "checkpoints", config, savers(members, config))
        self.done: dict[str, Mapping[str, Any]] = {}
        self.evaluations: list[dict[str, Any]] = list(folder.evaluations)
        #: Whether workers go on by themselves, so that one may die without the others.
        self._apart = config.layout.kind == "server" and not switches(config)
        self._failures = Failures(members, board, not self._apart, folder.log_path)
        self._next_look_at = self._next_hold_at = time.monotonic()
        self._hear: dict[str, Callable[[Message], None]] = {
            "records": self._on_records,
            "waiting": self._on_waiting,
            "scoring": self._on_scoring,
            "evaluated": self._on_evaluated,
            "event": self._on_event,
            "failed": self._on_failed,
            "done": self._on_done,
            "saved": self._on_saved,
            "unsaved": self._on_unsaved,
        }

    def gather(self) -> None:
        """Wait until all have joined, then tell everybody everybody's address.

        Raises:
            WorkerError: somebody died, or did not come in time.
        """
        timeout_s = self.config.run.join_timeout_s
        deadline = time.monotonic() + timeout_s
        addresses: dict[str, str] = {}
        while len(addresses) < len(self.members):
            missing = [name for name in self.members if name not in addresses]
            if self._asked_to_stop():
                raise KeyboardInterrupt
            if time.monotonic() > deadline:
                pids = self.processes.pids()
                whom = ", ".join(f"{name} (pid {pids.get(name)})" for name in missing)
                raise WorkerError(
                    f"{whom} did not join within run.join_timeout_s = {timeout_s:g} s; see "
                    f"{self.folder.path / 'logs'}, or raise the limit on a slow machine"
                )
            message = self._next()
            if self._failures:
                self._raise_root_cause()
            if message is None:
                continue
            if message.kind == "hello":
                addresses[message.sender] = message.meta["address"]
                self._failures.pids[message.sender] = message.meta["pid"]
                self.link.connect({message.sender: message.meta["address"]})
                self.folder.event("joined", process=message.sender, pid=message.meta["pid"])
            else:
                self._dispatch(message)
        self._all_joined = True
        with self.link.traffic.counting(TELEMETRY):
            for name in self.members:
                welcome = {"peers": addresses, "at_s": self.folder.age_s()}
                self.link.send(name, Message("welcome", meta=welcome))

    def lead(self) -> None:
        """Listen until all are done.

        Raises:
            WorkerError: a process raised, died, or went away before it was done.
            FreewheelError: of the same class that a process raised.
        """
        while len(self.done) < len(self.members):
            message = self._next()
            if message is not None:
                self._dispatch(message)
            if self._failures:
                self._raise_root_cause()
            self._hold_the_early()
            self.board.alive = self.processes.alive()
            self.progress.update(self.board)
            if self._asked_to_stop() and not self.stopping:
                self.progress.say("stopping after this step; press Ctrl-C again to stop at once")
                self.wish(Wish.SAVE_AND_STOP)
            elif self.saves.is_due():
                self.wish(Wish.SAVE)
        self.progress.update(self.board, force=True)
        self.tell_all("finish")

    def wish(self, wish: Wish) -> None:
        """Ask rank 0 for something; it passes the wish on to all with its next step."""
        self.stopping |= wish is Wish.SAVE_AND_STOP
        with self.link.traffic.counting(TELEMETRY):
            to = listener(self.members, self.config, self._apart)
            self.link.send(to, Message("wish", meta={"wish": int(wish)}), timeout_s=1)

    def _hold_the_early(self) -> None:
        """Tell those who are done that others are not, and that they are to stay."""
        if time.monotonic() < self._next_hold_at:
            return
        self._next_hold_at = time.monotonic() + self.config.run.step_timeout_s / 4
        for name in self.done:
            with suppress(FreewheelError), self.link.traffic.counting(TELEMETRY):
                self.link.send(name, Message("stay"), timeout_s=0.2)

    def tell_all(self, kind: str) -> None:
        """Send a word to all who can hear it."""
        for name in self.members:
            # who cannot be reached any more is ended by the launcher
            with suppress(FreewheelError), self.link.traffic.counting(TELEMETRY):
                self.link.send(name, Message(kind), timeout_s=0.2)

    def _next(self) -> Message | None:
        try:
            return self.link.receive(timeout_s=POLL_S)
        except LinkTimeoutError:
            return None
        finally:
            # also where messages never pause
            if time.monotonic() >= self._next_look_at:
                self._next_look_at = time.monotonic() + POLL_S
                self._look_for_the_dead()

    def _look_for_the_dead(self) -> None:
        """Note the processes that ended before they were done."""
        for gone in self.processes.exits():
            if gone.name in self.done or (self._ending and gone.code == 0):
                continue
            self.folder.event("died", process=gone.name, pid=gone.pid, code=gone.code)
            together = self._ending or not self._all_joined or not self._apart
            if not together and may_go(gone.name, self.config, self.done):
                self._go_on_without(gone)
            else:
                self._failures.died(gone)
        self._tell_of_the_dead()

    def _go_on_without(self, gone: Any) -> None:
        """Tell the servers that a worker has died; what it did before counts."""
        self.progress.say(f"{gone} at step {self.board.last_step[gone.name]}; going on without it")
        self.done[gone.name] = totals_of_the_dead(gone.name, self.board)
        rank = int(gone.name.split()[1])
        self._untold += [(name, rank) for name in self.members if name.startswith("server")]

    def _tell_of_the_dead(self) -> None:
        """Tell servers which workers have died; whoever cannot hear it is told at the next look."""
        untold, self._untold = self._untold, []
        for name, rank in untold:
            try:
                with self.link.traffic.counting(TELEMETRY):
                    self.link.send(name, Message("gone", meta={"rank": rank}), timeout_s=0.2)
            except LinkTimeoutError:
                # it may be busy, or gone itself, which the next look finds
                self._untold.append((name, rank))

    def _raise_root_cause(self) -> None:
        """Hear everybody's last words, then raise the failure that most likely caused the others.

        When one process goes, its peers soon fail, too: with errors of their links. Those that
        are told to stop say how far they came.
        """
        self._ending = True
        self.tell_all("stop")
        deadline = time.monotonic() + LAST_WORD_S
        while time.monotonic() < deadline:
            message = self._next()
            if message is not None and message.kind != "hello":
                self._dispatch(message)
        raise self._failures.root_cause()

    def _dispatch(self, message: Message) -> None:
        hear = self._hear.get(message.kind)
        if hear is not None:
            hear(message)

    def _on_records(self, message: Message) -> None:
        rows = message.meta["rows"]
        self.folder.records(rows)
        for row in rows:
            self.board.record(row)

    def _on_waiting(self, message: Message) -> None:
        seconds = float(message.meta["seconds"])
        process = message.meta.get("process", message.sender)
        self.board.waiting(process, message.meta["for"], seconds)
        peer = self.board.waits[process][0]
        expected = message.meta.get("expected")
        self.folder.event(
            "waiting", process=process, peer=peer, seconds=round(seconds, 3), expected=expected
        )

    def _on_scoring(self, _: Message) -> None:
        self.board.scoring = True

    def _on_evaluated(self, message: Message) -> None:
        row = dict(message.meta)
        self.evaluations.append(row)
        self.board.scoring = False
        self.board.evaluated = dict(row["metrics"])
        self.folder.event("evaluated", **row)

    def _on_event(self, message: Message) -> None:
        what = dict(message.meta)
        if what["event"] == "switched":
            self._apart = what["to"] == "server"
        self.folder.event(what.pop("event"), process=message.sender, **what)

    def _on_saved(self, message: Message) -> None:
        step, files = message.meta["step"], message.meta["files"]
        if self.saves.take(message.sender, step, files):
            self.folder.event("checkpoint", step=step)
        elif self.saves.error is not None:
            self.progress.say(f"not saved: {self.saves.error}")

    def _on_unsaved(self, message: Message) -> None:
        self.saves.failed(message.sender, message.meta["step"], message.meta["error"])
        self.folder.event("unsaved", process=message.sender, error=message.meta["error"])
        self.progress.say(f"not saved: {message.meta['error']}")

    def _on_done(self, message: Message) -> None:
        self.done[message.sender] = message.meta

    def _on_failed(self, message: Message) -> None:
        self.folder.event("failed", process=message.sender, error=message.meta["error"])
        self._failures.told(message.sender, message.meta)
