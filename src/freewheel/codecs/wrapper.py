"""What codecs that wrap another have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from freewheel.codecs.base import Codec, FloatCodec, Key
from freewheel.codecs.keys import part_of
from freewheel.codecs.parse import CodecSpec, make_codec
from freewheel.errors import ConfigError

#: Calls of one key that may be open at once; older ones are settled by each codec's own rule.
MAX_OPEN = 8


class WrapperCodec(FloatCodec):
    """Base of codecs that hand a changed tensor to another codec and share its fate.

    Args:
        inner: the other codec.

    Example:
        >>> from freewheel.codecs import make_codec
        >>> make_codec("delta+quantise:2").inner.bits
        2
    """

    def __init__(self, inner: CodecSpec) -> None:
        self.inner: Codec = make_codec(inner)
        self.exact = self.inner.exact
        self.stateful = self.inner.stateful
        self._last_ticket = 0

    def commit(self, key: Key = "", ticket: int | None = None) -> None:
        """Commit the inner codec's state."""
        self.inner.commit(key, ticket)

    def rollback(self, key: Key = "", ticket: int | None = None) -> None:
        """Drop what the inner codec staged."""
        self.inner.rollback(key, ticket)

    def reset(self) -> None:
        """Forget the inner codec's state."""
        self.inner.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the inner codec's state."""
        return {"inner": self.inner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the inner codec's state."""
        self.inner.load_state_dict(part_of(state, "inner", self.name))

    def _ticket(self, inner_ticket: int) -> int:
        """Return the inner call's ticket, so that one names both, or else a new one."""
        self._last_ticket = inner_ticket or self._last_ticket + 1
        return self._last_ticket


def stateless(spec: CodecSpec, use: str) -> Codec:
    """Make a codec for a part of a payload, where there is nobody to acknowledge it.

    Args:
        spec: the codec.
        use: the setting that it was given for, for the message.

    Raises:
        ConfigError: it has a state, or a payload of no fixed length.
    """
    codec = make_codec(spec)
    if codec.stateful or not codec.exact:
        raise ConfigError(
            f"{use} takes a codec without state and of fixed length, got {codec.name!r}; use "
            "identity, cast or quantise"
        )
    return codec
