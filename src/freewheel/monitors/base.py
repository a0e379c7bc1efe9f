"""The interface of monitors, their two registries, and the verdict that they log.

A monitor is told what was measured and answers with a statistic, the threshold that it is held
against, and one word. Those of the registry ``monitors`` say whether a prediction is to be trusted;
those of ``criteria`` say whether it is time to go over to another protocol. Both are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from freewheel.errors import CheckpointError
from freewheel.registry import Registry

#: What was measured, by name. Numbers, but for the monitors that read a state or a history.
Evidence: TypeAlias = Mapping[str, Any]

#: ``trust``/``doubt`` from monitors, ``switch``/``stay`` from criteria, ``unsure`` from both while
#: there is too little to go by: to be treated as ``doubt`` or ``stay``.
Word: TypeAlias = Literal["trust", "doubt", "switch", "stay", "unsure"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a monitor says, complete enough to be logged and plotted.

    Args:
        name: of the monitor.
        verdict: its answer.
        statistic: the number it was decided by; None while there is none.
        threshold: what the statistic was held against.
        detail: further plain values.

    Example:
        >>> from freewheel.monitors import Verdict
        >>> Verdict("slope", "switch", 0.0, 0.01).log()["verdict"]
        'switch'
    """

    name: str
    verdict: Word
    statistic: float | None
    threshold: float
    detail: Mapping[str, Any] = field(default_factory=dict)

    def log(self) -> dict[str, Any]:
        """Return plain JSON values; a number that is not finite becomes None."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "statistic": _plain(self.statistic),
            "threshold": _plain(self.threshold),
            **{key: _plain(value) for key, value in self.detail.items()},
        }


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@runtime_checkable
class Monitor(Protocol):
    """Judges a run by what is measured in it.

    Attributes:
        name: as in the registry.
        needs: the evidence it looks at. A step that lacks some of it, or has a value that is NaN
            or infinite, tells it nothing: it answers as before.
    """

    name: str

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the evidence that it looks at."""
        ...

    def observe(self, clock: int, evidence: Evidence) -> Verdict:
        """Take note of a step and judge.

        Args:
            clock: local steps finished; larger than in the call before.
            evidence: what was measured, by name.

        Raises:
            ValueError: the clock does not grow; call ``reset`` when training goes back.
        """
        ...

    def reset(self) -> None:
        """Forget every observation."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what was observed, for a checkpoint: plain values, and tensors if it holds any."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave, from a monitor of the same settings."""
        ...


monitors: Registry[Monitor] = Registry(kind="monitor", group="freewheel.monitors")
criteria: Registry[Monitor] = Registry(kind="criterion", group="freewheel.criteria")


def number(evidence: Evidence, name: str) -> float | None:
    """Return a piece of evidence as a finite float; None if it is absent or not finite.

    Example:
        >>> from freewheel.monitors.base import number
        >>> number({"loss": 2}, "loss"), number({"loss": float("nan")}, "loss"), number({}, "loss")
        (2.0, None, None)
    """
    value = evidence.get(name)
    if value is None:
        return None
    value = float(value)
    return value if math.isfinite(value) else None


def is_broken(evidence: Evidence, name: str) -> bool:
    """Return whether a piece of evidence is there, but NaN or infinite.

    Example:
        >>> from freewheel.monitors.base import is_broken
        >>> is_broken({"loss": float("nan")}, "loss"), is_broken({}, "loss")
        (True, False)
    """
    return evidence.get(name) is not None and number(evidence, name) is None


def next_clock(name: str, clock: int, last: int | None) -> int:
    """Return ``clock`` if it comes after ``last``.

    Raises:
        ValueError: it does not.

    Example:
        >>> from freewheel.monitors.base import next_clock
        >>> next_clock("slope", 4, 3)
        4
    """
    if last is not None and clock <= last:
        raise ValueError(
            f"{name}: clock must grow with each observation, got {clock} after {last}; "
            "call reset() when training goes back"
        )
    return clock


def fields_of(name: str, state: Mapping[str, Any], *keys: str) -> list[Any]:
    """Return the values of exactly these keys of a saved state.

    Raises:
        CheckpointError: a key is missing or unknown.

    Example:
        >>> from freewheel.monitors.base import fields_of
        >>> fields_of("slope", {"a": 1}, "a")
        [1]
    """
    if set(state) != set(keys):
        raise CheckpointError(
            f"the state of {name} has the keys {sorted(keys)}, got {sorted(state)}; it was saved "
            "by something else"
        )
    return [state[key] for key in keys]
