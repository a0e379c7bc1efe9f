"""Codecs from configuration: a string such as ``"delta+quantise:4"``, or a table with a name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from freewheel.codecs.base import Codec, codecs
from freewheel.errors import ConfigError

#: What a configuration file may hold where a codec is expected.
CodecSpec = str | Mapping[str, Any] | Codec


def parse_codec(text: str) -> dict[str, Any]:
    """Return the table that a short string stands for.

    ``outer+inner`` wraps; ``name:value`` gives the first setting, ``name:value,key=value`` or
    ``name,key=value`` others.

    Args:
        text: such as ``"quantise:4"``, ``"quantise:2,per=row"``, ``"error_feedback+top_k:0.01"``.

    Returns:
        The name and settings, as ``make_codec`` takes them.

    Raises:
        ConfigError: an unknown codec, or a part that is not of this form.

    Example:
        >>> from freewheel.codecs import parse_codec
        >>> parse_codec("quantise:2,per=row")
        {'name': 'quantise', 'bits': 2, 'per': 'row'}
        >>> parse_codec("delta+quantise:4")
        {'name': 'delta', 'inner': {'name': 'quantise', 'bits': 4}}
    """
    head, plus, rest = text.partition("+")
    head = head.strip()
    name = re.split("[:,]", head, maxsplit=1)[0]
    mark, settings = head[len(name) : len(name) + 1], head[len(name) + 1 :]
    known = inspect.signature(codecs.get(name)).parameters
    table: dict[str, Any] = {"name": name}
    for place, setting in enumerate(settings.split(",") if mark else ()):
        key, equals, value = (part.strip() for part in setting.partition("="))
        if not equals and place == 0 and mark == ":":
            first = next((word for word in known if word != "inner"), None)
            if first is None:
                raise ConfigError(f"codec {name!r} has no setting, got {setting!r} in {text!r}")
            key, value = first, key
        elif not equals:
            raise ConfigError(
                f"cannot read {setting!r} in the codec {text!r}; after the first setting write "
                "key=value, as in quantise:4,per=row"
            )
        table[key] = _value(value)
    if plus:
        if "inner" not in known:
            raise ConfigError(
                f"codec {name!r} wraps no other, got {text!r}; put the wrapper first, as in "
                "delta+quantise:4"
            )
        table["inner"] = parse_codec(rest)
    return table


def make_codec(spec: CodecSpec) -> Codec:
    """Make a codec from a string, a table with ``name`` and settings, or return the one given.

    Args:
        spec: ``"quantise:4"``, or ``{"name": "quantise", "bits": 4}``, or a ``Codec``.

    Raises:
        ConfigError: an unknown name, an unknown setting, or one that is out of range.

    Example:
        >>> import torch
        >>> from freewheel.codecs import make_codec
        >>> codec = make_codec({"name": "quantise", "bits": 4})
        >>> codec.num_bytes((64, 512), torch.float32)
        16642
    """
    if isinstance(spec, Codec):
        return spec
    given = parse_codec(spec) if isinstance(spec, str) else spec
    table = dict(given)
    name = table.pop("name", None)
    if not isinstance(name, str):
        raise ConfigError(
            f'a codec needs a name, got {given!r}; write for example {{ name = "quantise", '
            "bits = 4 }"
        )
    return codecs.create(name, table)


def _value(text: str) -> int | float | bool | str:
    """Read a number or a truth value, else leave the word."""
    if text in ("true", "false"):
        return text == "true"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return text
