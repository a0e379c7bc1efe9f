"""How ranks that ``torchrun`` started find each other; rank 0 hosts coordinator and servers."""

from __future__ import annotations

import json
import os
import secrets
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # not in __all__

from freewheel.config import Config, parse_config
from freewheel.errors import ConfigError, FreewheelError
from freewheel.launch.lead import lead_script
from freewheel.launch.settings import parse_settings
from freewheel.observe.progress import Progress
from freewheel.observe.run_folder import RunFolder
from freewheel.runtime.job import Job
from freewheel.runtime.links import open_link
from freewheel.transport.base import COORDINATOR

#: Settings for a run that torchrun starts: ``"protocol.name=ssp protocol.staleness=3"``.
SET_VARIABLE = "FREEWHEEL_SET"


class Elsewhere:
    """The processes of a run that another launcher started, and watches."""

    def pids(self) -> dict[str, int]:
        """Return none: they are told on joining."""
        return {}

    def alive(self) -> list[str]:
        """Return none: who has gone is seen by the launcher."""
        return []

    def exits(self) -> list[Any]:
        """Return none: the launcher ends all when one goes."""
        return []

    def stop(self, grace_s: float = 3.0) -> None:
        """Leave it to the launcher."""


def meet(threads: list[threading.Thread]) -> Job | None:
    """Return this rank's job, once all know of the run; None where there is only one rank.

    Args:
        threads: rank 0 adds the one that leads the run.

    Raises:
        ConfigError: ``FREEWHEEL_SET`` holds something wrong.
    """
    rank, world = os.environ.get("RANK"), int(os.environ.get("WORLD_SIZE", "1"))
    if rank is None or world < 2 or "MASTER_ADDR" not in os.environ:
        return None
    store = _store(int(rank), world)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key = f"freewheel/{attempt}/run"
    if rank == "0":
        run = _begin(world, threads)
        store.set(key, json.dumps(run))
    else:
        run = json.loads(store.get(key))
    return Job("worker", int(rank), run["run_id"], run["run_dir"], run["coordinator"])


def _store(rank: int, world: int) -> TCPStore:
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        world,
        is_master=rank == 0 and not agents,
        timeout=timedelta(seconds=60),
        wait_for_workers=False,
    )


def settings_of(world: int, texts: Sequence[str]) -> Config:
    """Return the configuration of a run of so many workers.

    Raises:
        ConfigError: a setting is wrong, or contradicts what torchrun decided.
    """
    values = parse_settings(texts, SET_VARIABLE)
    layout = {"kind": "server", "workers": world, "placement": "colocated"}
    values["layout"] = {**layout, **values.get("layout", {})}
    values.setdefault("run", {}).setdefault("name", "loop")
    config = parse_config(values, SET_VARIABLE)
    if config.layout.workers != world or config.layout.placement != "colocated":
        raise ConfigError(
            f"{SET_VARIABLE}: torchrun started {world} ranks, and all of them are workers with "
            "servers as threads beside them; leave layout.workers and layout.placement out"
        )
    if config.layout.servers > world:
        raise ConfigError(
            f"{SET_VARIABLE}: layout.servers = {config.layout.servers}, and there are {world} "
            "ranks for them to run beside; use at most as many"
        )
    return config


def _begin(world: int, threads: list[threading.Thread]) -> dict[str, str]:
    """Make the run's folder, and lead it in a thread."""
    config = settings_of(world, os.environ.get(SET_VARIABLE, "").split())
    run_id = secrets.token_bytes(8)
    link = open_link(COORDINATOR, run_id, config)
    folder = RunFolder.create(config)

    def lead() -> None:
        try:
            lead_script(config, folder, link, Elsewhere(), Progress(quiet=True))
        except FreewheelError as error:
            sys.stderr.write(f"error: {error}\n")

    thread = threading.Thread(target=lead, name=COORDINATOR, daemon=True)
    thread.start()
    threads.append(thread)
    return {
        "run_id": run_id.hex(),
        "run_dir": str(folder.path.resolve()),
        "coordinator": link.address,
    }
