"""What went wrong in a run, brought down to the one thing that caused the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

from freewheel import errors
from freewheel.errors import FreewheelError, LinkError, WorkerError
from freewheel.observe.board import ALL_REDUCE, Board

#: How many lines of the log of a process that died are shown.
_TAIL_LINES = 15


class _Rank(IntEnum):
    """The lower, the more likely it is the cause: when one process goes, its peers fail, too."""

    OWN_WORDS = 0  # bad data, a loss that is NaN: said by the process that met it
    SIGNAL = 1
    RAISED = 2
    EXITED = 3
    SILENT = 4
    LINK = 5


@dataclass(frozen=True, slots=True)
class _Failure:
    rank: _Rank
    process: str
    error: FreewheelError | None = None  # None: put into words once all are known
    gone: Any = None
    text: str = ""


class Failures:
    """Gathers failures; ``root_cause`` says which one to show.

    Args:
        members: names of all processes.
        board: to know at which step a process was, and who waits for whom.
        lockstep: whether all processes take the same steps at the same time.
        log_path: gives the log of a process.
    """

    def __init__(self, members: Sequence[str], board: Board, lockstep: bool, log_path: Any) -> None:
        self.pids: dict[str, int] = {}
        self._members = members
        self._board = board
        self._lockstep = lockstep
        self._log_path = log_path
        self._found: list[_Failure] = []
        self._spoke: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._found)

    def died(self, gone: Any) -> None:
        """Note a process that ended before its time: name, pid, code (negative: a signal)."""
        rank = _Rank.SIGNAL if gone.code < 0 else _Rank.EXITED
        self._found.append(_Failure(rank, gone.name, gone=gone))

    def told(self, process: str, said: Mapping[str, Any]) -> None:
        """Note what a process said of its own failure."""
        self._spoke.add(process)
        text = str(said["error"])
        if said.get("peer"):
            self._found.append(_Failure(_Rank.SILENT, str(said["peer"]), text=text))
            return
        pid = self.pids.get(process, said.get("pid", 0))
        what = f"{process} (pid {pid}) failed: {text}"
        kind = getattr(errors, str(said["kind"]), None)
        error: FreewheelError
        if isinstance(kind, type) and issubclass(kind, FreewheelError):
            error = kind(what)
        else:
            error = WorkerError(f"{what}\n\n{str(said['traceback']).rstrip()}")
        own = not isinstance(error, (LinkError, WorkerError))
        rank = _Rank.OWN_WORDS if own else _Rank.RAISED
        if isinstance(error, LinkError):
            rank = _Rank.LINK
        self._found.append(_Failure(rank, process, error))

    def root_cause(self) -> FreewheelError:
        """Return the failure that most likely caused the others."""
        # one that has said why it ends is no new failure when it ends
        found = [
            f for f in self._found if f.rank is not _Rank.EXITED or f.process not in self._spoke
        ]
        first = min(found or self._found, key=lambda failure: failure.rank)
        if first.error is not None:
            return first.error
        if first.gone is not None:
            log = self._log_path(first.process)
            step = self.step_of(first.process)
            return WorkerError(f"{first.gone} at step {step}; its log is {log}{_tail(log)}")
        return WorkerError(self._why_silent(first.process, first.text))

    def step_of(self, process: str) -> int:
        """Return the step that a process was at, counted from 1.

        Its own last word may be a few steps old; where all keep in step, that of the others tells.
        """
        steps = self._board.last_step
        known = max(steps.values()) if self._lockstep else steps.get(process, 0)
        return known + 1

    def _why_silent(self, process: str, text: str) -> str:
        """Say of a process that others waited for in vain who it is and what it is doing."""
        names = self._late() if process == ALL_REDUCE else [self._last_in_chain(process)]
        said = []
        for name in names:
            pid = self.pids.get(name)
            said.append(
                f"{name} (pid {pid}) did not answer at step {self.step_of(name)}: it "
                f"{_state_of(pid)}"
            )
        return f"{'; '.join(said) or process}. {text}"

    def _late(self) -> list[str]:
        """Return who has not come to a collective that others wait in."""
        late = self._board.late()
        stuck = [name for name in late if _state_of(self.pids.get(name)) != _LIVES]
        return stuck or late

    def _last_in_chain(self, process: str) -> str:
        """Follow who waits for whom to the one who waits for nobody."""
        seen = {process}
        while process in self._board.waits:
            peer = self._board.waits[process][0]
            if peer in seen or peer not in self._members:
                break
            seen.add(peer)
            process = peer
        return process


_LIVES = "lives, and may be computing or waiting"


def _state_of(pid: int | None) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return "is gone, or on another machine"
    letter = text.rpartition(")")[2].split()[0]
    states = {
        "T": "is stopped (SIGSTOP, signal 19)",
        "Z": "is dead",
        "D": "waits for a disk",
    }
    return states.get(letter, _LIVES)


def _tail(path: Path) -> str:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return ""
    return "\n" + "\n".join(lines) if lines else ""
