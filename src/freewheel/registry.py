"""Things that are looked up by name: protocols, codecs, predictors, monitors, sharders ...

A third-party package adds its own by an entry point in the group that the registry names, for
example ``freewheel.protocols``; it is loaded only when it is asked for, or when all are listed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from freewheel.errors import ConfigError, FreewheelError, nearest

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Names for things of one kind, and a constructor that checks the settings given to it.

    Args:
        kind: the word for one such thing in messages, e.g. ``"protocol"``.
        group: the entry-point group of third-party ones, e.g. ``"freewheel.protocols"``.

    Example:
        >>> from freewheel.registry import Registry
        >>> shapes = Registry[tuple](kind="shape", group="example.shapes")
        >>> @shapes.register("square")
        ... def square(side: int = 1) -> tuple:
        ...     return (side, side)
        >>> shapes.create("square", {"side": 3})
        (3, 3)
    """

    def __init__(self, kind: str, group: str) -> None:
        self.kind = kind
        self.group = group
        self._own: dict[str, Callable[..., T]] = {}

    def register(self, name: str) -> Callable[[F], F]:
        """Return a decorator that files a class or function under ``name``."""

        def file(make: F) -> F:
            self._own[name] = make
            return make

        return file

    def names(self) -> list[str]:
        """Return all known names, ours and those of entry points, in alphabetical order."""
        return sorted({*self._own, *(entry.name for entry in entry_points(group=self.group))})

    def get(self, name: str) -> Callable[..., T]:
        """Return what was filed under ``name``.

        Raises:
            ConfigError: there is none of that name.
        """
        if name in self._own:
            return self._own[name]
        for entry in entry_points(group=self.group, name=name):
            made: Callable[..., T] = entry.load()
            return made
        raise ConfigError(f"unknown {self.kind} {name!r}{nearest(name, self.names())}")

    def create(self, name: str, settings: Mapping[str, Any] | None = None) -> T:
        """Make the thing filed under ``name`` with these settings.

        Args:
            name: its name.
            settings: keyword arguments for its constructor.

        Raises:
            ConfigError: no such name, a setting that it does not have, or one that it refuses.
        """
        make, given = self.get(name), dict(settings or {})
        known = inspect.signature(make).parameters
        open_ended = any(p.kind is p.VAR_KEYWORD for p in known.values())
        for key in given:
            if key not in known and not open_ended:
                raise ConfigError(
                    f"{self.kind} {name!r} has no setting {key!r}{nearest(key, known)}"
                )
        try:
            return make(**given)
        except FreewheelError:
            raise
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.kind} {name!r}: {error}") from error
