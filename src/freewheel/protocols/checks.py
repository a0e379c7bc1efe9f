"""Checks of settings that several protocols share, with the rule and the remedy in the message."""

from __future__ import annotations

from typing import Any


def at_least(what: str, value: Any, least: int, remedy: str = "") -> None:
    """Refuse a setting that is not a whole number of at least ``least``.

    Raises:
        ValueError: with ``what``, the rule, the value and the remedy.

    Example:
        >>> from freewheel.protocols.checks import at_least
        >>> at_least("staleness bound", -1, 0, 'use protocol = "asp" for no bound')
        Traceback (most recent call last):
        ValueError: staleness bound must be >= 0, got -1; use protocol = "asp" for no bound
    """
    tail = f"; {remedy}" if remedy else ""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{what} must be a whole number >= {least}, got {value!r}{tail}")
    if value < least:
        raise ValueError(f"{what} must be >= {least}, got {value}{tail}")
