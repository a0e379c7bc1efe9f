"""Criteria made of criteria: any of them, or all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from freewheel.monitors.base import (
    Evidence,
    Monitor,
    Verdict,
    Word,
    criteria,
    fields_of,
    next_clock,
)

#: A criterion, its name, or its name and settings: ``{"name": "slope", "window": 30}``.
Member = Monitor | str | Mapping[str, Any]


def _made(member: Member) -> Monitor:
    if isinstance(member, str):
        return criteria.create(member)
    if isinstance(member, Mapping):
        settings = dict(member)
        if "name" not in settings:
            raise ValueError(f"each member needs a name, got {settings}")
        return criteria.create(settings.pop("name"), settings)
    return member


class _Combined:
    """Shows every step to all members and counts those that fire.

    Args:
        members: criteria, names of criteria, or tables of a name and settings; at least one.

    Raises:
        ValueError: there is no member.
        ConfigError: a member is unknown or refuses its settings.
    """

    name: str
    count_all: bool

    def __init__(self, members: Sequence[Member] = ("relative_change", "maximum")) -> None:
        if isinstance(members, str) or not members:
            raise ValueError(f"members must be a list of at least one criterion, got {members!r}")
        self.members = tuple(_made(member) for member in members)
        self.reset()

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the evidence that the members look at."""
        return tuple(dict.fromkeys(name for member in self.members for name in member.needs))

    def reset(self) -> None:
        """Let every member forget."""
        self._clock: int | None = None
        for member in self.members:
            member.reset()

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a step and judge; see ``Monitor.observe``.

        Members that are unsure do not fire; where all are, so is this.
        """
        self._clock = next_clock(self.name, clock, self._clock)
        verdicts = [member.observe(clock, evidence) for member in self.members]
        fired = sum(verdict.verdict == "switch" for verdict in verdicts)
        threshold = len(self.members) if self.count_all else 1
        if fired >= threshold:
            word: Word = "switch"
        elif all(verdict.verdict == "unsure" for verdict in verdicts):
            word = "unsure"
        else:
            word = "stay"
        detail = {
            "fired": [verdict.name for verdict in verdicts if verdict.verdict == "switch"],
            "members": [verdict.log() for verdict in verdicts],
        }
        return Verdict(self.name, word, float(fired), float(threshold), detail)

    def state_dict(self) -> dict[str, Any]:
        """Return plain JSON values for a checkpoint."""
        return {
            "clock": self._clock,
            "members": [member.state_dict() for member in self.members],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave, from a criterion of as many members."""
        self._clock, saved = fields_of(self.name, state, "clock", "members")
        for member, its_state in zip(self.members, saved, strict=True):
            member.load_state_dict(its_state)


@criteria.register("any_of")
class AnyOf(_Combined):
    """Switch as soon as one member would, for instance a rule with a maximum to fall back on.

    Args:
        members: criteria, names of criteria, or tables of a name and settings; at least one.

    Example:
        >>> from freewheel.monitors.combine import AnyOf
        >>> rule = AnyOf(["relative_change", {"name": "maximum", "clock": 3}])
        >>> rule.observe(3, {"loss": 1.0}).detail["fired"]
        ['maximum']
    """

    name = "any_of"
    count_all = False


@criteria.register("all_of")
class AllOf(_Combined):
    """Switch when every member would, for instance a rule that must not fire before some clock.

    Args:
        members: criteria, names of criteria, or tables of a name and settings; at least one.

    Example:
        >>> from freewheel.monitors.combine import AllOf
        >>> rule = AllOf(["relative_change", {"name": "maximum", "clock": 3}])
        >>> rule.observe(3, {"loss": 1.0}).verdict
        'stay'
    """

    name = "all_of"
    count_all = True
