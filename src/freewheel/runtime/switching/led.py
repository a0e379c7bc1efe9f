"""What the coordinator of a run that switches does otherwise than that of other runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from freewheel.config import Config

NAME = "strategy_switch"


def switches(config: Config) -> bool:
    """Return whether a run goes over from replicas to servers.

    Example:
        >>> from freewheel.config import Config
        >>> from freewheel.runtime.switching.led import switches
        >>> switches(Config())
        False
    """
    return config.protocol_name == NAME


def savers(members: Sequence[str], config: Config) -> list[str]:
    """Return the processes that each save a part of a checkpoint: no servers in a switching run."""
    return [name for name in members if not (switches(config) and name.startswith("server"))]


def listener(members: Sequence[str], config: Config, apart: bool) -> str:
    """Return who is told the coordinator's wishes: who leads the others, now.

    Args:
        members: of the run, servers first.
        config: of the run.
        apart: whether workers go on by themselves already.
    """
    return members[0] if apart or not switches(config) else savers(members, config)[0]


def switch_summary(config: Config, done: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return when a run switched, and to what; that it never did is said, too.

    Args:
        config: of the run.
        done: what each process reported at its end.

    Returns:
        ``switched_at`` (step, or None), ``switches``, and ``switch`` where it never fired; nothing
        for other protocols.
    """
    if not switches(config):
        return {}
    said = (totals["switch"] for totals in done.values() if "switch" in totals)
    return dict(next(said, {"switched_at": None, "switches": []}))
