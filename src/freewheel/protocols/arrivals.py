"""What a central machine was told, as plain rows: the record from which a run can be replayed.

The order in which events reach the central machine is all that is not determined by the seed. A
server (real or simulated) that writes these rows down allows anybody to repeat its folds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from freewheel.errors import DataError
from freewheel.protocols.base import CentralEvent, Deadline
from freewheel.protocols.replicas import Joined, Left, Pulled, Push, Pushed, Reduced, Reported

_KINDS: dict[str, Any] = {
    "joined": Joined,
    "left": Left,
    "pulled": Pulled,
    "reported": Reported,
    "reduced": Reduced,
    "deadline": Deadline,
}
_NAMES: dict[type, tuple[str, ...]] = {}


def to_row(event: CentralEvent) -> dict[str, Any]:
    """Return an event as a JSON row.

    Example:
        >>> from freewheel.protocols.arrivals import to_row
        >>> from freewheel.protocols.replicas import Joined
        >>> to_row(Joined(rank=2))
        {'event': 'joined', 'rank': 2, 'clock': 0}
    """
    if isinstance(event, Pushed):
        row = {"event": "pushed", **_fields(event.push)}
        return {**row, "since_s": event.since_s, "evidence": dict(event.evidence)}
    name = type(event).__name__.lower()
    if name not in _KINDS:
        raise TypeError(f"{type(event).__name__} is not an event of a replica's central machine")
    return {"event": name, **_fields(event)}


def _fields(event: Any) -> dict[str, Any]:
    # asdict copies deeply, which takes longer than all else that a server does with a small push
    kind = type(event)
    names = _NAMES.get(kind)
    if names is None:
        names = _NAMES[kind] = tuple(field.name for field in fields(kind))
    return {name: getattr(event, name) for name in names}


def from_row(row: Mapping[str, Any]) -> CentralEvent:
    """Return the event of a row.

    Raises:
        DataError: the row is not one that ``to_row`` gives.

    Example:
        >>> from freewheel.protocols.arrivals import from_row
        >>> from_row({"event": "left", "rank": 1})
        Left(rank=1)
    """
    values = dict(row)
    name = values.pop("event", None)
    try:
        if name == "pushed":
            since_s, evidence = values.pop("since_s"), values.pop("evidence")
            return Pushed(Push(**values), evidence, since_s)
        if name == "reported":
            values["sketch"] = tuple(values["sketch"])
        event: CentralEvent = _KINDS[name](**values)
    except (KeyError, TypeError) as error:
        raise DataError(
            f"{dict(row)} is not an arrival; a row has 'event' (pushed, {', '.join(_KINDS)}) and "
            "that event's fields: was the record cut or edited?"
        ) from error
    return event
