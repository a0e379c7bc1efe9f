"""Runs servers and workers as threads of this process, over in-process links."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from freewheel.config import Config, parse_config
from freewheel.errors import LinkTimeoutError
from freewheel.launch.roles import members
from freewheel.runtime.context import Context
from freewheel.runtime.job import Job
from freewheel.runtime.mail import Mail
from freewheel.runtime.pieces import Given, Pieces
from freewheel.runtime.servers.role import ServerRole
from freewheel.runtime.servers.worker import ServerWorkerRole
from freewheel.runtime.stopwatch import Stopwatch
from freewheel.transport.base import COORDINATOR, Interrupted, Link, Message
from freewheel.transport.inproc import InprocHub
from freewheel.transport.schema import Limits


@dataclass
class Outcome:
    """What a run left behind."""

    config: Config
    run_dir: Path
    totals: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: list[Message] = field(default_factory=list)
    roles: dict[str, Any] = field(default_factory=dict)

    @property
    def state(self) -> dict[str, Any]:
        return self.roles["server 0"].module.state_dict()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for m in self.told if m.kind == "records" for row in m.meta["rows"]]

    def rows_of(self, worker: int) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["process"] == f"worker {worker}"]

    @property
    def scores(self) -> list[dict[str, Any]]:
        return [dict(m.meta) for m in self.told if m.kind == "evaluated"]

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [dict(m.meta) for m in self.told if m.kind == "event" and m.meta["event"] == kind]

    @property
    def served(self) -> dict[str, Any]:
        return self.totals["server 0"]["served"]


def run_served(
    given: Given,
    run_dir: Path,
    *,
    wrap: Callable[[str, Link], Link] = lambda name, link: link,
    change: Callable[[str, Any], None] = lambda name, role: None,
    timeout_s: float = 60.0,
    limits: Limits | None = None,
    **sections: Any,
) -> Outcome:
    """Train to the end; raise what a role raised first.

    Args:
        given: objects for the roles.
        run_dir: where arrivals are recorded.
        wrap: may put something around a role's link.
        change: may change a role before it starts.
        timeout_s: for the whole run.
        limits: of messages.
        sections: of the configuration.
    """
    layout = {"kind": "server", **sections.pop("layout", {})}
    config = parse_config({"layout": layout, **sections})
    hub = InprocHub(limits=limits)
    names = [f"{role} {rank}" for role, rank in members(config)]
    links: dict[str, Link] = {COORDINATOR: hub.link(COORDINATOR)}
    for name in names:
        links[name] = wrap(name, hub.link(name))
    addresses = {name: link.address for name, link in links.items()}
    for name, link in links.items():
        link.connect({other: a for other, a in addresses.items() if other != name})
        link.interrupt_on("stop")
    outcome, errors = Outcome(config, run_dir), []
    for role_name, rank in members(config):
        name = f"{role_name} {rank}"
        job = Job(role_name, rank, "00" * 8, str(run_dir), addresses[COORDINATOR])
        context = Context(
            job,
            config,
            Pieces(config, given),
            Mail(links[name], Stopwatch(), config.run.step_timeout_s),
        )
        role = ServerRole(context) if role_name == "server" else ServerWorkerRole(context)
        change(name, role)
        outcome.roles[name] = role

    def work(name: str, role: Any) -> None:
        try:
            outcome.totals[name] = role.run()
        except Interrupted:
            return
        except Exception as error:
            errors.append(error)
            for other in names:
                if other != name:
                    role.mail.link.send(other, Message("stop"))

    threads = [
        threading.Thread(target=work, args=item, name=item[0], daemon=True)
        for item in outcome.roles.items()
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    living = True
    while living:
        living = any(thread.is_alive() for thread in threads)
        assert time.monotonic() < deadline, f"{[t.name for t in threads if t.is_alive()]} hang"
        try:
            # what is there when all have ended must still be read
            while True:
                outcome.told.append(links[COORDINATOR].receive(timeout_s=0.02 if living else 0.0))
        except LinkTimeoutError:
            continue
    for link in links.values():
        link.close()
    if errors:
        raise errors[0]
    return outcome
