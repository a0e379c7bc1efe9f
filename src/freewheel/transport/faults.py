"""What may go wrong on a link, on purpose: a plan of faults, the same for the same seed."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from freewheel.errors import ConfigError, nearest
from freewheel.transport.base import Message

Action = Literal["drop", "delay", "cut", "corrupt", "flip"]


@dataclass(frozen=True, slots=True)
class Fault:
    """What befalls some of the messages of a link.

    Args:
        action: ``drop``: lost. ``delay``: later by ``delay_ms``, and what follows it in its lane
            too, as order holds. ``cut``: held back until ``until_s``, as TCP holds what it could
            not deliver; lost if the cut never ends. ``corrupt``: arrives as bytes that the receiver
            refuses. ``flip``: one bit of one tensor differs, which nobody can tell.
        sender: of the messages; anyone where None.
        to: to whom; anyone where None.
        kind: of which kind; any where None.
        first: the first that it befalls, of those that fit, counted from 1.
        last: the last, itself included; None for all later ones.
        from_s: not before, in seconds since the link was made.
        until_s: not from then on.
        share: of those, how many, drawn by the seed.
        delay_ms: for ``delay``.

    Raises:
        ConfigError: an unknown action, or a range that is empty.

    Example:
        >>> from freewheel.transport.faults import Fault
        >>> Fault("drop", to="server 0", kind="push", first=3, last=3).action
        'drop'
    """

    action: Action
    sender: str | None = None
    to: str | None = None
    kind: str | None = None
    first: int = 1
    last: int | None = None
    from_s: float = 0.0
    until_s: float = math.inf
    share: float = 1.0
    delay_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.action not in get_args(Action):
            raise ConfigError(
                f"unknown fault {self.action!r}{nearest(self.action, get_args(Action))}"
            )
        if self.first < 1 or (self.last is not None and self.last < self.first):
            raise ConfigError(
                f"a fault needs 1 <= first <= last, got first {self.first}, last {self.last}"
            )
        if not (0 <= self.from_s < self.until_s and 0 <= self.share <= 1 and self.delay_ms >= 0):
            raise ConfigError(
                "a fault needs 0 <= from_s < until_s, share in [0, 1] and delay_ms >= 0, got "
                f"{self.from_s}, {self.until_s}, {self.share}, {self.delay_ms}"
            )


class Verdict(NamedTuple):
    """What befalls one message: all faults that fit, taken together."""

    lost: bool = False
    corrupted: bool = False
    flipped: bool = False
    delay_s: float = 0.0
    not_before_s: float = 0.0


class FaultPlan:
    """A list of faults. Each link that it is given to counts for itself.

    Args:
        faults: in any order; a message may meet several.

    Example:
        >>> from freewheel.transport.base import Message
        >>> from freewheel.transport.faults import Fault, FaultPlan
        >>> trial = FaultPlan([Fault("drop", first=2, last=2)]).start(seed=0)
        >>> [trial.judge("a", "b", Message("push"), 0.0).lost for _ in range(3)]
        [False, True, False]
    """

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        self.faults = tuple(faults)

    def start(self, seed: int) -> Trial:
        """Return the plan with its counters at zero."""
        return Trial(self.faults, seed)


class Trial:
    """A plan under way: counts the messages that fit each fault."""

    def __init__(self, faults: Sequence[Fault], seed: int) -> None:
        self._faults = faults
        self._seen = [0] * len(faults)
        self._random = random.Random(seed)

    def judge(self, sender: str, to: str, message: Message, now_s: float) -> Verdict:
        """Return what befalls a message that is sent ``now_s`` seconds after the link was made."""
        verdict = Verdict()
        for place, fault in enumerate(self._faults):
            wanted = (fault.sender, fault.to, fault.kind)
            actual = (sender, to, message.kind)
            if any(w not in (None, a) for w, a in zip(wanted, actual, strict=True)):
                continue
            self._seen[place] += 1
            count = self._seen[place]
            if count < fault.first or count > (fault.last or count):
                continue
            if not fault.from_s <= now_s < fault.until_s or self._random.random() >= fault.share:
                continue
            verdict = _add(verdict, fault)
        return verdict


def _add(verdict: Verdict, fault: Fault) -> Verdict:
    if fault.action == "delay":
        return verdict._replace(delay_s=verdict.delay_s + fault.delay_ms / 1000)
    if fault.action == "cut" and fault.until_s < math.inf:
        return verdict._replace(not_before_s=max(verdict.not_before_s, fault.until_s))
    if fault.action == "corrupt":
        return verdict._replace(corrupted=True)
    if fault.action == "flip":
        return verdict._replace(flipped=True)
    return verdict._replace(lost=True)
