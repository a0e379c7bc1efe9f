"""Calls what the user wrote, and says in one line what went wrong in it, and where."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from freewheel.errors import ConfigError, FreewheelError

T = TypeVar("T")

_OURS = str(Path(__file__).resolve().parent.parent)


def blame(error: BaseException) -> str:
    """Return an error's kind and text, with the last line of code that is not a library's.

    Example:
        >>> from freewheel.runtime.user_code import blame
        >>> blame(ValueError("three is not two"))
        'ValueError: three is not two'
    """
    text = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(
        ": "
    )
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "site-packages" not in frame.filename
        and not frame.filename.startswith((_OURS, "<"))
        and "/lib/python3" not in frame.filename
    ]
    if not frames:
        return text
    last = frames[-1]
    return f"{text} (in {last.name}, {Path(last.filename).name} line {last.lineno})"


def call_factory(what: str, factory: Callable[..., T], /, *arguments: Any, **settings: Any) -> T:
    """Call a factory of the user's.

    Args:
        what: for the message, e.g. ``"model.factory 'mine:build'"``.
        factory: to be called with the rest.

    Raises:
        ConfigError: it raised; names the error and the line.
    """
    if not callable(factory):
        raise ConfigError(
            f"{what} is a {type(factory).__name__}, not a function; name a function that makes it"
        )
    try:
        return factory(*arguments, **settings)
    except FreewheelError:
        raise
    except Exception as error:
        raise ConfigError(f"{what} raised {blame(error)}") from error
