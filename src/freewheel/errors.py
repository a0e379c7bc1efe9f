"""Errors meant for the person who runs freewheel, each with the exit code it ends a process with.

A message says what happened, the value seen, the rule, and what to do next. Anything else that
escapes (``AssertionError``, ``KeyError`` ...) is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_OK = 0
EXIT_BUG = 1
EXIT_CONFIG = 2
EXIT_DATA = 3
EXIT_MODEL = 4
EXIT_LINK = 5
EXIT_WORKER = 6
EXIT_NON_FINITE = 7
EXIT_CHECKPOINT = 8
EXIT_INTERRUPTED = 130


class FreewheelError(Exception):
    """Base of all errors for the user.

    Attributes:
        exit_code: what the command line exits with when this error ends it.

    Example:
        >>> from freewheel.errors import FreewheelError
        >>> FreewheelError("nothing to do").exit_code
        1
    """

    exit_code = EXIT_BUG


class ConfigError(FreewheelError, ValueError):
    """A setting is unknown, malformed, or contradicts another (exit code 2)."""

    exit_code = EXIT_CONFIG


class DataError(FreewheelError, ValueError):
    """A data source is missing, empty, or unreadable (exit code 3)."""

    exit_code = EXIT_DATA


class ModelError(FreewheelError, ValueError):
    """A model cannot be built, cut, or trained as asked (exit code 4)."""

    exit_code = EXIT_MODEL


class LinkError(FreewheelError):
    """A message could not be sent or received (exit code 5)."""

    exit_code = EXIT_LINK


class LinkTimeoutError(LinkError, TimeoutError):
    """A deadline passed before the message came or could be handed over (exit code 5)."""


class WireError(LinkError, ValueError):
    """Bytes arrived that do not form a message of this run; they were refused (exit code 5)."""


class WorkerError(FreewheelError):
    """A process of the run raised, died, or went silent (exit code 6)."""

    exit_code = EXIT_WORKER


class NonFiniteError(FreewheelError, ArithmeticError):
    """A batch, a loss, or a gradient is NaN or infinite (exit code 7)."""

    exit_code = EXIT_NON_FINITE


class CheckpointError(FreewheelError):
    """A checkpoint cannot be written or is not to be trusted (exit code 8)."""

    exit_code = EXIT_CHECKPOINT


class StoppedError(FreewheelError):
    """The run was asked to stop, and did (exit code 130)."""

    exit_code = EXIT_INTERRUPTED


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known word most like ``word``, else all of them.

    Args:
        word: what the user wrote.
        known: the words that would have been right.

    Returns:
        A clause to append to an error message.

    Example:
        >>> from freewheel.errors import nearest
        >>> nearest("stagse", ["stages", "workers"])
        "; did you mean 'stages'?"
        >>> nearest("zzz", ["b", "a"])
        '; known: a, b'
    """
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known: {', '.join(known)}" if known else ""
