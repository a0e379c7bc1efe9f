"""What happens to learning rate, momentum and batch when a run goes over to another protocol.

Each change is a small value; a list of them is applied in order, so that they compose:
``at_switch = ["fold_momentum", {name = "ramp_lr", updates = 50}]``. Nothing else is changed: an
empty list keeps all as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.optim import Optimizer

from freewheel.errors import ConfigError
from freewheel.protocols.checks import at_least
from freewheel.registry import Registry

#: A change's name, or a table of its name and settings.
ChangeSpec: TypeAlias = str | Mapping[str, Any]


class Change:
    """One change; what a subclass does not override stays as it is.

    Attributes:
        corrects_momentum: whether it makes sense only for an optimizer with momentum.
        ramps: whether the rate changes from update to update.
        batches: batches of a worker that make one push from now on.
    """

    corrects_momentum = False
    ramps = False
    batches = 1

    def rates(self, lr: float, momentum: float, num_workers: int) -> tuple[float, float]:
        """Return rate and momentum from now on; linear in the rate."""
        return lr, momentum

    def ramp(self, updates: int) -> float:
        """Return what the rate is multiplied by after so many updates since the switch."""
        return 1.0

    def velocity(self, ratio: float) -> float:
        """Return what momentum buffers are multiplied by; the rate was multiplied by ``ratio``."""
        return 1.0


changes: Registry[Change] = Registry(kind="change at a switch", group="freewheel.at_switch")


@changes.register("keep")
@dataclass(frozen=True)
class Keep(Change):
    """Change nothing: the same as an empty list, but said aloud."""


@changes.register("scale_lr")
@dataclass(frozen=True)
class ScaleLr(Change):
    """Multiply the learning rate, that of the schedule included.

    Args:
        factor: above 0.

    Example:
        >>> from freewheel.protocols.at_switch import ScaleLr
        >>> ScaleLr(0.5).rates(0.25, 0.9, num_workers=8)
        (0.125, 0.9)
    """

    factor: float = 0.5

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f"factor must be > 0, got {self.factor}; 0.5 halves the rate")

    def rates(self, lr: float, momentum: float, num_workers: int) -> tuple[float, float]:
        """Return the scaled rate."""
        return lr * self.factor, momentum


@changes.register("ramp_lr")
@dataclass(frozen=True)
class RampLr(Change):
    """Begin with a part of the learning rate and come back to all of it in equal steps.

    Args:
        updates: of the server until the whole rate is reached, >= 1.
        start: the part to begin with, in [0, 1].

    Example:
        >>> from freewheel.protocols.at_switch import RampLr
        >>> [RampLr(updates=2, start=0.5).ramp(updates) for updates in range(4)]
        [0.5, 0.75, 1.0, 1.0]
    """

    ramps = True

    updates: int = 100
    start: float = 0.1

    def __post_init__(self) -> None:
        at_least("updates", self.updates, 1, "1 gives the whole rate from the second update on")
        if not 0.0 <= self.start <= 1.0:
            raise ValueError(f"start must lie in [0, 1], got {self.start}")

    def ramp(self, updates: int) -> float:
        """Return the part that is reached."""
        return self.start + (1.0 - self.start) * min(1.0, updates / self.updates)


@changes.register("fold_momentum")
@dataclass(frozen=True)
class FoldMomentum(Change):
    r"""Fold momentum into the rate: :math:`\mu \to 0`, :math:`\eta \to \eta / (1 - \mu)`.

    A constant gradient moves parameters as far as before, and the momentum that asynchrony adds is
    all there is.

    Example:
        >>> from freewheel.protocols.at_switch import FoldMomentum
        >>> [round(x, 6) for x in FoldMomentum().rates(0.1, 0.9, num_workers=8)]
        [1.0, 0.0]

    References:
        Mitliagkas et al., "Asynchrony begets Momentum, with an Application to Deep Learning", 2016.
    """

    corrects_momentum = True

    def rates(self, lr: float, momentum: float, num_workers: int) -> tuple[float, float]:
        """Return the larger rate, and no momentum."""
        return lr / (1.0 - momentum), 0.0


@changes.register("lower_momentum")
@dataclass(frozen=True)
class LowerMomentum(Change):
    r"""Take off the momentum that N workers without barriers add: :math:`1 - N (1 - \mu)`, or 0.

    The rate grows as in ``fold_momentum``, so that a constant gradient moves parameters as before.

    Example:
        >>> from freewheel.protocols.at_switch import LowerMomentum
        >>> [round(x, 6) for x in LowerMomentum().rates(0.1, 0.9, num_workers=4)]
        [0.4, 0.6]

    References:
        Mitliagkas et al., "Asynchrony begets Momentum, with an Application to Deep Learning", 2016.
    """

    corrects_momentum = True

    def rates(self, lr: float, momentum: float, num_workers: int) -> tuple[float, float]:
        """Return the larger rate and the lower momentum."""
        lowered = max(0.0, 1.0 - num_workers * (1.0 - momentum)) if momentum else 0.0
        return lr * (1.0 - lowered) / (1.0 - momentum), lowered


@changes.register("correct_velocity")
@dataclass(frozen=True)
class CorrectVelocity(Change):
    """Divide momentum buffers by what the rate was multiplied by: momentum correction.

    The next steps of the momentum that has gathered are then as long as they were.

    Example:
        >>> from freewheel.protocols.at_switch import CorrectVelocity
        >>> CorrectVelocity().velocity(ratio=4.0)
        0.25

    References:
        Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017.
    """

    corrects_momentum = True

    def velocity(self, ratio: float) -> float:
        """Return 1 / ratio."""
        return 1.0 / ratio if ratio else 1.0


@changes.register("forget_velocity")
@dataclass(frozen=True)
class ForgetVelocity(Change):
    """Set momentum buffers to zero: nothing gathered under the first protocol lives on."""

    corrects_momentum = True

    def velocity(self, ratio: float) -> float:
        """Return 0."""
        return 0.0


@changes.register("scale_batch")
@dataclass(frozen=True)
class ScaleBatch(Change):
    """Let a push stand for several batches of its worker.

    Args:
        factor: batches in a push, >= 1.
    """

    factor: int = 2

    def __post_init__(self) -> None:
        at_least("factor", self.factor, 1, "1 keeps the batch")

    @property
    def batches(self) -> int:  # type: ignore[override]  # a setting, where others have a constant
        """Batches in one push."""
        return self.factor


class Changes(Change):
    """Several changes, one after the other.

    Args:
        specs: a change's name or table, or a list of those.

    Raises:
        ConfigError: a change is unknown, or refuses its settings.

    Example:
        >>> from freewheel.protocols.at_switch import Changes
        >>> both = Changes(["fold_momentum", {"name": "scale_lr", "factor": 0.5}])
        >>> [round(x, 6) for x in both.rates(0.1, 0.9, num_workers=8)]
        [0.5, 0.0]
    """

    def __init__(self, specs: ChangeSpec | Sequence[ChangeSpec]) -> None:
        given = [specs] if isinstance(specs, (str, Mapping)) else list(specs)
        self.all = [_made(spec) for spec in given]

    @property
    def ramps(self) -> bool:  # type: ignore[override]  # of all, where others have a constant
        """Whether any of them changes the rate from update to update."""
        return any(change.ramps for change in self.all)

    @property
    def batches(self) -> int:  # type: ignore[override]  # of all, where others have a constant
        """Batches in one push."""
        product = 1
        for change in self.all:
            product *= change.batches
        return product

    def rates(self, lr: float, momentum: float, num_workers: int) -> tuple[float, float]:
        """Return rate and momentum after all changes."""
        for change in self.all:
            lr, momentum = change.rates(lr, momentum, num_workers)
        return lr, momentum

    def ramp(self, updates: int) -> float:
        """Return the product of all ramps."""
        product = 1.0
        for change in self.all:
            product *= change.ramp(updates)
        return product

    def velocity(self, ratio: float) -> float:
        """Return the product of all factors."""
        product = 1.0
        for change in self.all:
            product *= change.velocity(ratio)
        return product

    def check(self, optimizer: Optimizer) -> None:
        """Refuse to correct momentum where there is none.

        Raises:
            ConfigError: with the change and the optimizer.
        """
        has = any(group.get("momentum") for group in optimizer.param_groups)
        wrong = [type(change).__name__ for change in self.all if change.corrects_momentum]
        if wrong and not has:
            raise ConfigError(
                f"at_switch asks for {wrong[0]}, and {type(optimizer).__name__} has no momentum "
                'here; leave it out, or set optimizer.momentum (of "sgd" or "rmsprop")'
            )


def _made(spec: ChangeSpec) -> Change:
    if isinstance(spec, str):
        return changes.create(spec)
    settings = dict(spec)
    name = settings.pop("name", None)
    if name is None:
        raise ValueError(f"a change at the switch needs a name, got {dict(spec)}")
    return changes.create(name, settings)
