"""Leads a run whose workers are loops of the user's own, however they were started."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from freewheel.config import Config
from freewheel.errors import FreewheelError
from freewheel.launch.roles import members
from freewheel.observe.board import Board
from freewheel.observe.progress import Progress
from freewheel.observe.run_folder import RunFolder
from freewheel.observe.summary import make_summary
from freewheel.runtime.coordinator import Coordinator, Processes
from freewheel.runtime.servers.served import served_summary
from freewheel.transport.base import Link


def lead_script(
    config: Config,
    folder: RunFolder,
    link: Link,
    processes: Processes,
    progress: Progress,
    asked_to_stop: Callable[[], bool] = lambda: False,
    threads: int = 0,
) -> dict[str, Any]:
    """Gather the loops and servers, listen to them, write the summary; return it.

    Args:
        config: the run's.
        folder: the run's; closed at the end.
        link: named ``"coordinator"``; closed at the end.
        processes: to see who lives.
        progress: what the person sees.
        asked_to_stop: whether a person wants the run to end.
        threads: that each process computes with; 0: not known.

    Raises:
        FreewheelError: what went wrong.
    """
    start = time.monotonic()
    names = [f"{role} {rank}" for role, rank in members(config)]
    board = Board(None, names)
    leader = Coordinator(link, names, processes, folder, board, progress, config, asked_to_stop)
    summary: dict[str, Any] = {"status": "failed", "protocol": config.protocol_name}
    try:
        with progress.shown():
            leader.gather()
            leader.lead()
        done = leader.done
        steps = max(int(totals["step"]) for totals in done.values())
        seconds = time.monotonic() - start
        made = make_summary(config, "of the script", done, [], board.loss, steps, seconds, threads)
        summary = {**made, **served_summary(done)}
        if leader.stopping:
            summary["status"] = "interrupted"
        return summary
    except BaseException as error:
        text = str(error) if isinstance(error, FreewheelError) else repr(error)
        summary = {**summary, "steps": board.step, "error": text}
        leader.tell_all("stop")
        raise
    finally:
        link.close()
        folder.summary({**summary, "run": str(folder.path)})
        folder.close()
