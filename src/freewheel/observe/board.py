"""What is known of a run while it goes on, gathered from what its processes tell."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

#: Rates shown to a person are taken over this many of the last records.
WINDOW = 50
#: The peer of one who waits in a collective: it cannot know for whom.
ALL_REDUCE = "all-reduce"


class Board:
    """The state of a run, for a progress line or a summary.

    Args:
        total_steps: steps that the run will take, or None where that is not known.
        processes: names of all processes.
    """

    def __init__(self, total_steps: int | None, processes: list[str]) -> None:
        self.total_steps = total_steps
        self.alive = list(processes)
        self._processes = list(processes)
        self.step = 0
        self.loss: float | None = None
        self.metrics: dict[str, float] = {}
        self.evaluated: dict[str, float] = {}
        self.samples = 0
        self.scoring = False
        self._waits: dict[str, tuple[str, float]] = {}
        self.compute_s: dict[str, float] = dict.fromkeys(processes, 0.0)
        self.wait_s: dict[str, float] = dict.fromkeys(processes, 0.0)
        self.wall_s: dict[str, float] = dict.fromkeys(processes, 0.0)
        self.last_step: dict[str, int] = dict.fromkeys(processes, 0)
        self.samples_of: dict[str, int] = dict.fromkeys(processes, 0)
        self._recent: deque[Mapping[str, Any]] = deque(maxlen=WINDOW)
        self._samples_at: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def record(self, row: Mapping[str, Any]) -> None:
        """Take in one process's record of one step."""
        name = row["process"]
        self._waits.pop(name, None)
        self.last_step[name] = row["step"]
        self.compute_s[name] += row["compute_s"]
        self.wait_s[name] += row["wait_s"]
        self.wall_s[name] += row["compute_s"] + row["wait_s"] + row["send_s"]
        self.samples_of[name] += row["samples"]
        self._recent.append(row)
        if row.get("loss") is not None:
            self.step = max(self.step, row["step"])
            self.loss = row["loss"]
            self.metrics = dict(row.get("metrics", {}))
            self.samples += row["samples"]
            self._samples_at.append((float(row.get("at_s", 0.0)), self.samples))

    def waiting(self, name: str, peer: str, seconds: float) -> None:
        """Take in that a process has been waiting for a peer for so long."""
        self._waits[name] = (peer, seconds)

    @property
    def waits(self) -> dict[str, tuple[str, float]]:
        """For whom each process waits, and for how long.

        Who waits in a collective waits for those that have not come to it.
        """
        late = " and ".join(self.late())
        return {
            name: (late if late and peer == ALL_REDUCE else peer, seconds)
            for name, (peer, seconds) in self._waits.items()
        }

    def late(self) -> list[str]:
        """Return the processes that wait for nobody."""
        return [name for name in self._processes if name not in self._waits]

    def samples_per_s(self) -> float:
        """Return the recent rate."""
        if len(self._samples_at) < 2:
            return 0.0
        (start, before), (now, after) = self._samples_at[0], self._samples_at[-1]
        return (after - before) / (now - start) if now > start else 0.0

    def wait_share(self) -> tuple[float, str | None]:
        """Return the recent share of time spent waiting, and who was waited for longest."""
        wait = {row["wait_for"]: 0.0 for row in self._recent}
        total = 0.0
        for row in self._recent:
            wait[row["wait_for"]] += row["wait_s"]
            total += row["compute_s"] + row["wait_s"] + row["send_s"]
        longest = max(wait, key=lambda peer: wait[peer], default=None)
        return sum(wait.values()) / max(1e-9, total), longest

    def bytes_per_step(self) -> float:
        """Return bytes sent by all processes in one step, recently."""
        of_process: dict[str, list[int]] = {}
        for row in self._recent:
            of_process.setdefault(row["process"], []).append(row["bytes_sent"])
        return float(sum(sum(sent) / len(sent) for sent in of_process.values()))
