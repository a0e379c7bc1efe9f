"""What a protocol says of itself: its cost, what a death does, its exact setting, its source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """The facts that ``freewheel protocols`` lists and ``freewheel explain`` prints.

    Formulas are in P (bytes of all parameters), N (workers), S (stages), A (bytes of activations
    that cross one cut in a step), and the protocol's own settings. They count one step of one
    worker (sent and received, but only sent in a collective), or one step of a whole pipeline.

    Args:
        waits_for: whom a worker waits for before its next step.
        messages: messages per step.
        bytes: bytes per step, headers left out.
        on_death: what happens when a worker dies.
        exact: the setting in which it equals plain single-process training, and to what degree.
        reference: author, title, year.
        paragraph: what it does and when to choose it.

    Example:
        >>> from freewheel.protocols import protocols
        >>> protocols.get("asp").card.waits_for
        'nobody'
    """

    waits_for: str
    messages: str
    bytes: str
    on_death: str
    exact: str
    reference: str
    paragraph: str
