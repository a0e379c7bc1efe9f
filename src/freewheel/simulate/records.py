"""Writes a simulated run into a run folder, in the form of a real one; all times are virtual."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from freewheel.observe.run_folder import RunFolder
from freewheel.protocols.replicas import Drop, Evidence, Fold
from freewheel.simulate.result import Observer
from freewheel.simulate.worker import Worker

if TYPE_CHECKING:
    from freewheel.simulate.engine import Simulation

#: Rows kept in memory before they are written.
FLUSH_ROWS = 1000


class Recorder(Observer):
    """Makes rows of ``metrics.jsonl`` and ``events.jsonl``, and evaluates now and then.

    Args:
        folder: where they go.
        every: evaluate every so many steps of the run (N workers' steps are one); 0: never.
        num_workers: N.
        evaluate: returns metrics of the server's parameters by name.
        say: is called with a line for a person after each evaluation.
        role: of the simulated processes: ``"worker"`` beside servers, else ``"replica"``.
    """

    def __init__(
        self,
        folder: RunFolder,
        every: int,
        num_workers: int,
        evaluate: Callable[[], dict[str, float]],
        say: Callable[[str], None],
        role: str = "worker",
    ) -> None:
        self.folder = folder
        self._role = role
        self.run: Simulation | None = None
        self.evaluations: list[dict[str, Any]] = []
        self.train_loss: float | None = None
        self.lr: Callable[[], float | None] = lambda: None
        self._every, self._num_workers = every, num_workers
        self._evaluate, self._say = evaluate, say
        self._steps = self._evaluated = 0
        self._rows: list[dict[str, Any]] = []
        self._before: dict[int, dict[str, float]] = {}

    @property
    def steps(self) -> int:
        """Steps of the run so far: N local steps are one."""
        return self._steps // self._num_workers

    def stepped(self, worker: Worker, num_samples: int, evidence: Evidence, seconds: float) -> None:
        """Record a step of a worker."""
        self._steps += 1
        self.train_loss = evidence.get("loss", self.train_loss)
        now = self._totals(worker)
        before = self._before.get(worker.rank, dict.fromkeys(now, 0))
        self._before[worker.rank] = now
        wait_s = now["wait_s"] - before["wait_s"]
        row: dict[str, Any] = {
            "process": f"{self._role} {worker.rank}",
            "step": worker.clock,
            "clock": worker.clock,
            "version": worker.version,
            "samples": num_samples,
            "loss": evidence.get("loss"),
            "metrics": {},
            "lr": self.lr(),
            **{key: now[key] - before[key] for key in now if not key.endswith("_s")},
            "compute_s": seconds,
            "wait_s": wait_s,
            "send_s": 0.0,
            "wait_for": "server 0" if wait_s > 0 else None,
            "virtual_s": self._now_s(),
        }
        self._rows.append(row)
        if len(self._rows) >= FLUSH_ROWS:
            self.flush()

    def folded(self, fold: Fold, version: int, now_s: float) -> None:
        """Evaluate where it is due: after an update, when the parameters are those of a version."""
        due = self._every and self.steps // self._every > self._evaluated
        if due:
            self._evaluated = self.steps // self._every
            self.evaluate(self._evaluated * self._every, version)

    def dropped(self, drop: Drop, now_s: float) -> None:
        """Record a push that was refused."""
        push = drop.push
        self.folder.event(
            "dropped",
            process=f"{self._role} {push.worker}",
            clock=push.clock,
            based_on=push.based_on,
            reason=drop.reason,
            virtual_s=now_s,
        )

    def changed(self, what: str, now_s: float, **facts: Any) -> None:
        """Record that somebody joined, left or died, or that the topology was switched."""
        if what == "reduced":
            return
        if "rank" in facts:
            facts = {"process": f"{self._role} {facts.pop('rank')}", **facts}
        self.folder.event(what, **facts, virtual_s=now_s)

    def evaluate(self, step: int, version: int) -> dict[str, float]:
        """Score the server's parameters; neither time nor bytes pass."""
        metrics = self._evaluate()
        row = {"step": step, "version": version, "metrics": metrics, "virtual_s": self._now_s()}
        self.evaluations.append(row)
        self.folder.event("evaluated", **row)
        scores = "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
        self._say(f"step {step}  virtual {self._now_s():.2f} s  version {version}  {scores}")
        return metrics

    def flush(self) -> None:
        """Write the rows made so far."""
        self.folder.records(self._rows)
        self._rows = []

    def _now_s(self) -> float:
        return self.run.queue.now_s if self.run is not None else 0.0

    def _totals(self, worker: Worker) -> dict[str, float]:
        if self.run is None:
            return {}
        network = self.run.network
        counts: Mapping[str, Mapping[int, int]] = {
            "bytes_sent": network.bytes_sent,
            "messages_sent": network.messages_sent,
            "bytes_received": network.bytes_received,
        }
        totals: dict[str, float] = {key: by.get(worker.rank, 0) for key, by in counts.items()}
        return {**totals, "wait_s": worker.wait_s}
