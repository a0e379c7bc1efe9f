"""Keep your own training loop: ``freewheel.join`` and a wrapped optimizer."""

from __future__ import annotations

from freewheel.loop.joining import join
from freewheel.loop.optimizer import ServedOptimizer
from freewheel.loop.session import Joined

__all__ = ["Joined", "ServedOptimizer", "join"]
