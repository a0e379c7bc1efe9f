"""What the coordinator knows of a run with servers: who may die, and how it went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from freewheel.config import Config
from freewheel.errors import ConfigError
from freewheel.observe.board import Board
from freewheel.runtime.job import Job
from freewheel.transport.base import EVALUATE, TELEMETRY, TRAIN


def may_go(name: str, config: Config, done: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return whether a run goes on without a process that died before its end.

    A worker may go, unless ``layout.on_worker_death = "end"``, a server runs in its process, or no
    other worker is left that could come to its end.

    Args:
        name: of the process.
        config: the run's.
        done: what the processes that are no more reported.

    Example:
        >>> from freewheel.config import parse_config
        >>> from freewheel.runtime.servers.served import may_go
        >>> config = parse_config({"layout": {"kind": "server", "workers": 2}})
        >>> may_go("worker 1", config, {}), may_go("server 0", config, {})
        (True, False)
    """
    layout, (role, _, rank) = config.layout, name.partition(" ")
    if layout.kind != "server" or role != "worker" or layout.on_worker_death == "end":
        return False
    if layout.placement == "colocated" and int(rank) < layout.servers:
        return False
    dead = sum(bool(totals.get("died")) for totals in done.values())
    return dead + 1 < layout.workers


def hosted_by(job: Job, config: Config) -> Job | None:
    """Return the job of the server that runs as a thread of a worker's process, if one does.

    With ``layout.placement = "colocated"`` the first workers host one server each.

    Raises:
        ConfigError: there are more servers than workers to host them.

    Example:
        >>> from freewheel.config import parse_config
        >>> from freewheel.runtime.job import Job
        >>> from freewheel.runtime.servers.served import hosted_by
        >>> config = parse_config({"layout": {"kind": "server", "placement": "colocated"}})
        >>> hosted_by(Job("worker", 0, "00" * 8, "runs/x", "tcp://127.0.0.1:1"), config).name
        'server 0'
    """
    layout = config.layout
    if layout.kind != "server" or layout.placement == "separate" or job.role != "worker":
        return None
    if layout.servers > layout.workers:
        raise ConfigError(
            f"layout.servers = {layout.servers} beside layout.workers = {layout.workers}: with "
            'placement = "colocated" each worker hosts at most one server; use fewer servers, or '
            'placement = "separate"'
        )
    return replace(job, role="server") if job.rank < layout.servers else None


def processes_of(names: Sequence[str], config: Config) -> list[str]:
    """Return which members of a run are processes of their own, by name."""
    if config.layout.kind == "server" and config.layout.placement == "colocated":
        return [name for name in names if not name.startswith("server")]
    return list(names)


def totals_of_the_dead(name: str, board: Board) -> dict[str, Any]:
    """Return what is known of a worker that died, in the form in which others report."""
    nothing = {"bytes_sent": 0, "messages_sent": 0, "bytes_received": 0}
    return {
        "died": True,
        "step": board.last_step[name],
        "samples": board.samples_of.get(name, 0),
        "compute_s": board.compute_s[name],
        "wait_s": board.wait_s[name],
        "send_s": board.wall_s[name] - board.compute_s[name] - board.wait_s[name],
        "wall_s": board.wall_s[name],
        "traffic": {phase: dict(nothing) for phase in (TRAIN, EVALUATE, TELEMETRY)},
        "bytes_to": {},
    }


def served_summary(done: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what a summary says of servers and their workers; nothing for other layouts.

    Args:
        done: what each process reported at its end; server 0's has ``"served"``.

    Returns:
        ``version``, ``staleness`` (p50, max, mean and counts over all folded pushes), ``dropped``
        by reason, ``refused``, ``died`` (names), and ``workers``: of each its clock, version,
        staleness, drops, and seconds waited by whom it waited for.
    """
    served = done.get("server 0", {}).get("served")
    if served is None:
        return {}
    counts: Counter[int] = Counter()
    dropped: Counter[str] = Counter()
    workers = {}
    for rank, notes in served["workers"].items():
        own = Counter({int(value): n for value, n in notes["staleness"].items()})
        counts += own
        dropped += Counter(notes["dropped"])
        totals = done.get(f"worker {rank}", {})
        waits = {peer: round(s, 6) for peer, s in totals.get("waited_for", {}).items()}
        workers[rank] = {**notes, "staleness": _spread(own), "waited_for": waits}
    return {
        "version": served["version"],
        "staleness": _spread(counts),
        "dropped": dict(dropped),
        "refused": sum(notes["refused"] for notes in served["workers"].values()),
        "died": sorted(name for name, totals in done.items() if totals.get("died")),
        "workers": workers,
    }


def _spread(counts: Counter[int]) -> dict[str, Any]:
    values = sorted(counts)
    total, seen, middle = counts.total(), 0, None
    for value in values:
        seen += counts[value]
        if middle is None and 2 * seen >= total:
            middle = value
    return {
        "p50": middle,
        "max": max(values, default=None),
        "mean": sum(v * n for v, n in counts.items()) / total if total else None,
        "counts": {str(value): counts[value] for value in values},
    }
