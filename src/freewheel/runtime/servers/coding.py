"""The codecs between a server and a worker, as a configuration names them."""

from __future__ import annotations

from freewheel.codecs.coding import Coding, codings
from freewheel.config import Config

__all__ = ["Coding", "codings_of"]


def codings_of(config: Config, server: int, worker: int) -> tuple[Coding, Coding]:
    """Return one end of the pushes, and one of the pulls, between a server and a worker."""
    return codings(config.codec.push, config.codec.pull, config.run.seed, server, worker)
