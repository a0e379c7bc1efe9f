"""The state of a machine as plain JSON values, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from freewheel.protocols.replicas import Push
from freewheel.protocols.stages import Coast, Local, Plan, Replay, Sync

_RECORDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Push, Plan, Sync, Local, Coast, Replay)
}


def plain(value: Any) -> Any:
    """Return ``value`` as JSON values; all but lists and scalars is tagged by a one-key dict.

    Raises:
        TypeError: a value of another kind is in it.

    Example:
        >>> from freewheel.protocols.state import plain, unplain
        >>> plain({3: {7}})
        {'dict': [[3, {'set': [7]}]]}
        >>> unplain(plain({3: {7}}))
        {3: {7}}
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    name = type(value).__name__
    if name in _RECORDS:
        return {name: [plain(getattr(value, field.name)) for field in fields(value)]}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [plain(item) for item in value]}
    if isinstance(value, set):
        return {"set": [plain(item) for item in sorted(value)]}
    if isinstance(value, dict):
        return {"dict": [[plain(key), plain(item)] for key, item in value.items()]}
    raise TypeError(f"a machine's state holds a {name}; use plain values, pushes and plans only")


def unplain(value: Any) -> Any:
    """Return what ``plain`` was given."""
    if isinstance(value, list):
        return [unplain(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    ((tag, items),) = value.items()
    if tag in _RECORDS:
        return _RECORDS[tag](*(unplain(item) for item in items))
    if tag == "tuple":
        return tuple(unplain(item) for item in items)
    if tag == "set":
        return {unplain(item) for item in items}
    return {unplain(key): unplain(item) for key, item in items}


class PlainState:
    """Mixin: the state is every attribute whose name has no leading underscore.

    Attributes with one are settings; they come from the protocol, not from the state.
    """

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as plain JSON values."""
        return {name: plain(v) for name, v in vars(self).items() if not name.startswith("_")}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Continue as the machine that ``state`` was taken from."""
        own = {name for name in vars(self) if not name.startswith("_")}
        if own != set(state):
            raise ValueError(
                f"{type(self).__name__} keeps {sorted(own)}, got {sorted(state)}; "
                "is this state from another protocol?"
            )
        for name, value in state.items():
            setattr(self, name, unplain(value))
