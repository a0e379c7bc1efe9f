"""How long a step takes each worker: a base, persistent and transient stragglers, and jitter."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from random import Random

from freewheel.errors import ConfigError


@dataclass(frozen=True)
class Stragglers:
    """Some workers that are slower all the time: the last ``count`` ranks.

    Args:
        count: how many, >= 0.
        factor: how many times slower, >= 1.

    Example:
        >>> from freewheel.simulate import Stragglers
        >>> Stragglers.parse("2x4")
        Stragglers(count=2, factor=4.0)
    """

    count: int = 0
    factor: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Stragglers:
        """Read ``"2x4"`` (2 workers, 4 times slower) or ``"none"``.

        Raises:
            ConfigError: it does not look like that, or the factor is below 1.
        """
        if text == "none":
            return cls()
        found = re.fullmatch(r"(\d+)x(\d+(?:\.\d+)?)", text.strip())
        if not found or float(found[2]) < 1:
            raise ConfigError(
                f"stragglers {text!r} must look like COUNTxFACTOR with a factor >= 1, "
                'e.g. 2x4 (2 workers, each 4 times slower), or "none"'
            )
        return cls(int(found[1]), float(found[2]))


@dataclass(frozen=True)
class Transient:
    """Any step of any worker may be slow, by chance.

    Args:
        probability: of a slow step, in [0, 1].
        factor: how many times slower it is, >= 1.

    Example:
        >>> from freewheel.simulate import Transient
        >>> Transient.parse("0.05x5")
        Transient(probability=0.05, factor=5.0)
    """

    probability: float = 0.0
    factor: float = 1.0

    @classmethod
    def parse(cls, text: str) -> Transient:
        """Read ``"0.05x5"`` (each step with probability 0.05 takes 5 times as long) or ``"none"``.

        Raises:
            ConfigError: it does not look like that, or a number is out of its range.
        """
        if text == "none":
            return cls()
        found = re.fullmatch(r"(\d*\.?\d+)x(\d+(?:\.\d+)?)", text.strip())
        if not found or not float(found[1]) <= 1 or float(found[2]) < 1:
            raise ConfigError(
                f"transient {text!r} must look like PROBABILITYxFACTOR, a probability in [0, 1] "
                'and a factor >= 1, e.g. 0.05x5, or "none"'
            )
        return cls(float(found[1]), float(found[2]))


@dataclass(frozen=True)
class Compute:
    """The duration of each step, fixed by seed, rank and the number of the step alone.

    ``d = step_s * (persistent factor) * (transient factor) * exp(jitter * z)``, z standard normal.

    Args:
        step_s: seconds of a step of a full batch on a normal worker, >= 0.
        stragglers: persistent ones.
        transient: chance ones.
        jitter: sigma of the lognormal factor, >= 0; 0.1 is usual (without any, asynchronous
            workers fall into a fixed round).
        seed: of the chance.

    Raises:
        ConfigError: a number is out of its range.

    Example:
        >>> from freewheel.simulate import Compute, Stragglers
        >>> compute = Compute(0.1, Stragglers(1, 4.0)).of(num_workers=2)
        >>> compute.next_s(0), compute.next_s(1)
        (0.1, 0.4)
    """

    step_s: float = 0.01
    stragglers: Stragglers = field(default_factory=Stragglers)
    transient: Transient = field(default_factory=Transient)
    jitter: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.step_s >= 0:
            raise ConfigError(f"step time must be >= 0 seconds, got {self.step_s}")
        if not self.jitter >= 0:
            raise ConfigError(f"jitter must be >= 0, got {self.jitter}; 0 is none, 0.1 is usual")

    def of(self, num_workers: int) -> Durations:
        """Return the durations of a run with so many initial workers.

        Raises:
            ConfigError: there are more stragglers than workers.
        """
        if self.stragglers.count > num_workers:
            raise ConfigError(
                f"{self.stragglers.count} stragglers but {num_workers} workers; "
                "there can be at most as many"
            )
        return Durations(self, num_workers)


class Durations:
    """Draws each worker's durations, one after the other."""

    def __init__(self, compute: Compute, num_workers: int) -> None:
        self._compute = compute
        self._slow = range(num_workers - compute.stragglers.count, num_workers)
        self._random: dict[int, Random] = {}

    def next_s(self, rank: int) -> float:
        """Return how long the worker's next step takes for a full batch, in seconds."""
        compute = self._compute
        seconds = compute.step_s * (compute.stragglers.factor if rank in self._slow else 1.0)
        if not compute.transient.probability and not compute.jitter:
            return seconds
        if rank not in self._random:
            # A stream of its own: what others do cannot change this worker's durations.
            self._random[rank] = Random(f"{compute.seed}:{rank}")
        chance = self._random[rank]
        if chance.random() < compute.transient.probability:
            seconds *= compute.transient.factor
        return seconds * chance.lognormvariate(0.0, compute.jitter) if compute.jitter else seconds
