"""freewheel trains PyTorch models across machines and lets data decide when they must talk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freewheel._version import __version__

if TYPE_CHECKING:
    from freewheel.api import TrainResult, train
    from freewheel.export import load
    from freewheel.loop import join

__all__ = ["TrainResult", "__version__", "join", "load", "train"]

_HOMES = {
    "train": "freewheel.api",
    "TrainResult": "freewheel.api",
    "load": "freewheel.export",
    "join": "freewheel.loop",
}


def __getattr__(name: str) -> Any:
    # torch takes seconds to import: a name is fetched when it is first used
    if name not in _HOMES:
        raise AttributeError(f"module 'freewheel' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
