"""The registry of protocols; third-party ones use the entry-point group ``freewheel.protocols``."""

from __future__ import annotations

from typing import cast

from freewheel.protocols.base import Protocol
from freewheel.registry import Registry

protocols: Registry[Protocol] = Registry(kind="protocol", group="freewheel.protocols")


def card_of(name: str) -> str:
    """Return what ``freewheel explain NAME`` prints: the card of one protocol, as plain text.

    Raises:
        ConfigError: there is no protocol of that name.

    Example:
        >>> from freewheel.protocols import card_of
        >>> print(card_of("vanilla").splitlines()[0])
        vanilla (layout: pipeline)
    """
    made = cast("type[Protocol]", protocols.get(name))
    card = made.card
    rows = {
        "waits for": card.waits_for,
        "messages per step": card.messages,
        "bytes per step": card.bytes,
        "when a worker dies": card.on_death,
        "exact setting": card.exact,
        "reference": card.reference,
    }
    width = max(map(len, rows))
    lines = [f"{word:<{width}}  {text}" for word, text in rows.items()]
    return "\n".join([f"{name} (layout: {made.layout})", card.paragraph, "", *lines])
