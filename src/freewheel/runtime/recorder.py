"""One process's records of its steps, sent to the coordinator a few at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from freewheel.runtime.mail import Mail
from freewheel.transport.base import EVALUATE, TELEMETRY, TRAIN, Traffic

#: Seconds between two messages of records.
FLUSH_EVERY_S = 0.2

Sums = Mapping[str, tuple[float, float]]


def means(sums: Sums) -> dict[str, float]:
    """Return sum / count for each name; a count of 0 gives no entry.

    Example:
        >>> from freewheel.runtime.recorder import means
        >>> means({"loss": (6.0, 4.0), "accuracy": (0.0, 0.0)})
        {'loss': 1.5}
    """
    return {name: value / count for name, (value, count) in sums.items() if count > 0}


class Recorder:
    """Makes the rows of ``metrics.jsonl``.

    Args:
        mail: whose traffic and time are recorded, and by which the rows go out.
        began_at: when the run began, on this process's monotonic clock.
        report_every_s: seconds between two messages.
    """

    def __init__(
        self, mail: Mail, began_at: float = 0.0, report_every_s: float = FLUSH_EVERY_S
    ) -> None:
        self.mail = mail
        self._began_at = began_at
        self.totals = {"compute_s": 0.0, "wait_s": 0.0, "send_s": 0.0, "wall_s": 0.0}
        self.samples = 0
        self._earlier: list[Mapping[str, Any]] = []
        self._rows: list[dict[str, Any]] = []
        self._every_s = report_every_s
        self._next = time.monotonic() + report_every_s
        self._before = _sums(mail.link.traffic)

    def step(
        self,
        step: int,
        sums: Sums,
        num_samples: int,
        lr: float | None,
        epoch: int,
        **more: Any,
    ) -> None:
        """Record that step number ``step`` (counted from 1) has ended; ``more`` are columns."""
        lap = self.mail.watch.lap()
        now = _sums(self.mail.link.traffic)
        found = means(sums)
        row: dict[str, Any] = {
            "process": self.mail.link.name,
            "step": step,
            "clock": step,
            "at_s": round(time.monotonic() - self._began_at, 4),
            "epoch": epoch,
            "samples": num_samples,
            "loss": found.pop("loss", None),
            "metrics": found,
            "lr": lr,
            **{key: now[key] - self._before[key] for key in now},
            **lap,
            **more,
        }
        self._before = now
        self.samples += num_samples
        for key in ("compute_s", "wait_s", "send_s"):
            self.totals[key] += row[key]
            self.totals["wall_s"] += row[key]
        self._rows.append(row)
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Send what is recorded so far."""
        if self._rows:
            self.mail.tell("records", {"rows": self._rows})
            self._rows = []
        self._next = time.monotonic() + self._every_s

    def state_dict(self) -> dict[str, Any]:
        """Return the totals so far, for a checkpoint."""
        final = self.final()
        return {key: final[key] for key in (*self.totals, "samples", "traffic", "bytes_to")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from the totals of a checkpoint."""
        self.load_sum([state], shared_out=False)
        self._earlier = [state]

    def load_sum(self, states: Sequence[Mapping[str, Any]], shared_out: bool) -> None:
        """Go on from several processes' totals, where the layout is another now.

        Args:
            states: of all processes.
            shared_out: whether each of them saw other samples.
        """
        for key in ("compute_s", "wait_s", "send_s"):
            self.totals[key] = sum(float(state[key]) for state in states)
        self.totals["wall_s"] = max(float(state["wall_s"]) for state in states)
        samples = [int(state["samples"]) for state in states]
        self.samples = sum(samples) if shared_out else max(samples)
        # the cuts were others then: what crossed each of them says nothing of those there are now
        self._earlier = [{**state, "bytes_to": {}} for state in states]

    def final(self) -> dict[str, Any]:
        """Return this process's totals, traffic by phase and peer among them."""
        traffic = self.mail.link.traffic
        phases = {}
        for phase in (TRAIN, EVALUATE, TELEMETRY):
            sent, received = traffic.total_sent(phase), traffic.total_received(phase)
            phases[phase] = {
                "bytes_sent": sent.num_bytes,
                "messages_sent": sent.messages,
                "bytes_received": received.num_bytes,
            }
            for state in self._earlier:
                for key, value in state["traffic"].get(phase, {}).items():
                    phases[phase][key] += value
        to = {peer: n.num_bytes for (phase, peer), n in traffic.out.items() if phase == TRAIN}
        for state in self._earlier:
            for peer, num_bytes in state["bytes_to"].items():
                to[peer] = to.get(peer, 0) + num_bytes
        return {**self.totals, "samples": self.samples, "traffic": phases, "bytes_to": to}


def _sums(traffic: Traffic) -> dict[str, int]:
    sent, received = traffic.total_sent(), traffic.total_received()
    return {
        "bytes_sent": sent.num_bytes,
        "messages_sent": sent.messages,
        "bytes_received": received.num_bytes,
    }
