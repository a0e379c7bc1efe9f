"""Runs a switching run's servers and workers as threads of this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from freewheel.runtime.context import Context
from freewheel.runtime.pieces import Given
from freewheel.runtime.switching.server import SwitchingServerRole
from freewheel.runtime.switching.worker import SwitchingWorkerRole
from freewheel.transport.base import Link
from in_threads import ThreadGroup, _Shared
from served import Outcome, run_served


class StayingGroup(ThreadGroup):
    """A group whose members close it each when they are done with it."""

    def close(self) -> None:
        pass


def run_switched(
    given: Given,
    run_dir: Path,
    *,
    wrap: Callable[[str, Link], Link] = lambda name, link: link,
    change: Callable[[str, Any], None] = lambda name, role: None,
    timeout_s: float = 60.0,
    **sections: Any,
) -> Outcome:
    """Train to the end; raise what a role raised first."""
    shared = _Shared(sections["layout"]["workers"], timeout_s)

    def worker(context: Context) -> Any:
        return SwitchingWorkerRole(context)

    protocol = {"name": "strategy_switch", **sections.pop("protocol", {})}
    with (
        patch("freewheel.runtime.replicas.replica.Group", lambda r, *_: StayingGroup(r, shared)),
        patch("served.ServerRole", SwitchingServerRole),
        patch("served.ServerWorkerRole", worker),
    ):
        return run_served(
            given,
            run_dir,
            wrap=wrap,
            change=change,
            timeout_s=timeout_s,
            protocol=protocol,
            **sections,
        )
