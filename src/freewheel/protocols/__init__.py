"""When do workers exchange? One protocol a file, each a value that makes two pure machines."""

from __future__ import annotations

from freewheel.protocols import (  # noqa: F401 - each registers itself
    all_reduce,
    asp,
    backup_workers,
    bounded_delay,
    bsp,
    coast,
    dead_reckoning,
    dssp,
    easgd,
    fda,
    fedbuff,
    gba,
    k_async,
    local_sgd,
    replay,
    ssp,
    strategy_switch,
    vanilla,
)
from freewheel.protocols.base import Machine, Protocol
from freewheel.protocols.card import Card
from freewheel.protocols.registry import card_of, protocols

__all__ = ["Card", "Machine", "Protocol", "card_of", "protocols"]
