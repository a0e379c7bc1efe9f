"""Settings in the form ``section.key=value``, as values of a configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from freewheel.errors import ConfigError


def parse_settings(texts: Sequence[str], origin: str) -> dict[str, Any]:
    """Return nested values.

    Args:
        texts: each ``section.key=value``; the value is read as TOML, else as a string.
        origin: what to call them in errors.

    Raises:
        ConfigError: one of them is not of that form, or contradicts another.

    Example:
        >>> from freewheel.launch.settings import parse_settings
        >>> parse_settings(["protocol.name=ssp", "protocol.staleness=3"], "--set")
        {'protocol': {'name': 'ssp', 'staleness': 3}}
    """
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        parts = key.strip().split(".")
        if not equals or len(parts) < 2 or not all(parts):
            raise ConfigError(
                f"{origin}: {text!r} must look like section.key=value, e.g. protocol.staleness=3"
            )
        section: Any = values
        for part in parts[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise ConfigError(f"{origin}: {text!r}: {part!r} is a value, not a section")
        section[parts[-1]] = _value(value)
    return values


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()
