"""How much a late update weighs: rules that turn its staleness into a factor.

Staleness is the number of versions that the server has applied since the worker pulled. A rule is
``Rule.factor(staleness, num_workers)``; the factor multiplies the weight of the update, which for
gradients under plain SGD is the same as multiplying the learning rate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from freewheel.errors import ConfigError
from freewheel.registry import Registry


class Rule(ABC):
    """A factor for an update, from its staleness and the number of workers.

    Attributes:
        rescales: False only for ``none``; of rules that rescale at most one may be active.
    """

    rescales: ClassVar[bool] = True

    @abstractmethod
    def factor(self, staleness: int, num_workers: int) -> float:
        """Return the factor, in (0, 1].

        Args:
            staleness: versions applied since the worker pulled, >= 0.
            num_workers: workers in the run at this moment, >= 1.
        """


staleness_rules: Registry[Rule] = Registry(kind="staleness rule", group="freewheel.staleness_rules")


@staleness_rules.register("none")
@dataclass(frozen=True)
class NoRule(Rule):
    """Every update weighs the same: factor 1."""

    rescales: ClassVar[bool] = False

    def factor(self, staleness: int, num_workers: int) -> float:
        """Return 1."""
        return 1.0


@staleness_rules.register("lr_over_n")
@dataclass(frozen=True)
class LrOverN(Rule):
    """Divide by the number of workers, as the learning rate ``alpha / n`` does.

    References:
        Provatas, Konstantinou, Koziris, sharding for asynchronous training, IEEE BigData 2021.
    """

    def factor(self, staleness: int, num_workers: int) -> float:
        """Return 1 / N."""
        return 1.0 / num_workers


@staleness_rules.register("staleness_aware")
@dataclass(frozen=True)
class StalenessAware(Rule):
    """Divide by the staleness; a fresh update (0 or 1) keeps its weight.

    References:
        Zhang et al., "Staleness-aware Async-SGD for Distributed Deep Learning", 2016.
    """

    def factor(self, staleness: int, num_workers: int) -> float:
        """Return 1 / max(tau, 1)."""
        return 1.0 / max(staleness, 1)


@staleness_rules.register("dynsgd")
@dataclass(frozen=True)
class DynSGD(Rule):
    """Divide by the staleness plus one.

    References:
        Jiang et al., "Heterogeneity-aware Distributed Parameter Servers", 2017.
    """

    def factor(self, staleness: int, num_workers: int) -> float:
        """Return 1 / (tau + 1)."""
        return 1.0 / (staleness + 1)


@staleness_rules.register("fedasync_poly")
@dataclass(frozen=True)
class FedAsyncPoly(Rule):
    """Fall polynomially: ``alpha * (1 + tau) ** -a``.

    Args:
        a: exponent, >= 0; 0.5 is the paper's.
        alpha: factor of a fresh update, in (0, 1].

    References:
        Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019.
    """

    a: float = 0.5
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.a < 0:
            raise ValueError(f"exponent a must be >= 0, got {self.a}; 0 scales nothing")
        _check_alpha(self.alpha)

    def factor(self, staleness: int, num_workers: int) -> float:
        """Return alpha (1 + tau)^-a."""
        return float(self.alpha * (1.0 + staleness) ** -self.a)


@staleness_rules.register("fedasync_hinge")
@dataclass(frozen=True)
class FedAsyncHinge(Rule):
    """Keep up to ``b``, then fall: ``alpha`` if ``tau <= b`` else ``alpha / (a (tau - b) + 1)``.

    Args:
        a: slope, > 0; 10 is the paper's.
        b: staleness that costs nothing, >= 0; 4 is the paper's.
        alpha: factor of a fresh update, in (0, 1].

    References:
        Xie, Koyejo, Gupta, "Asynchronous Federated Optimization", 2019.
    """

    a: float = 10.0
    b: int = 4
    alpha: float = 1.0

    def __post_init__(self) -> None:
        if self.a <= 0:
            raise ValueError(f"slope a must be > 0, got {self.a}")
        if self.b < 0:
            raise ValueError(f"free staleness b must be >= 0, got {self.b}")
        _check_alpha(self.alpha)

    def factor(self, staleness: int, num_workers: int) -> float:
        """Return alpha, or alpha / (a (tau - b) + 1) past b."""
        late = staleness - self.b
        return self.alpha if late <= 0 else self.alpha / (self.a * late + 1.0)


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= 1:
        raise ValueError(f"factor alpha must be in (0, 1], got {alpha}")


#: A rule as a user writes it: a name, a table with ``name`` and settings, or a list of those.
RuleSpec = str | Mapping[str, Any] | Sequence[Any]


def rule_of(spec: RuleSpec) -> Rule:
    """Return the staleness rule that ``spec`` asks for.

    Args:
        spec: ``"dynsgd"``, ``{"name": "fedasync_hinge", "a": 10, "b": 4}``, or a list of such, of
            which at most one may rescale.

    Returns:
        The one rule that is active.

    Raises:
        ConfigError: an unknown name or setting, or two rules that both rescale for staleness.

    Example:
        >>> from freewheel.aggregation import rule_of
        >>> rule_of("dynsgd").factor(staleness=3, num_workers=8)
        0.25
        >>> rule_of({"name": "fedasync_hinge", "a": 1.0, "b": 2}).factor(5, 8)
        0.25
    """
    if isinstance(spec, str):
        return staleness_rules.create(spec)
    if isinstance(spec, Mapping):
        settings = dict(spec)
        if "name" not in settings:
            raise ConfigError(
                f"a staleness rule needs a name, got {settings}; "
                f"known: {', '.join(staleness_rules.names())}"
            )
        return staleness_rules.create(str(settings.pop("name")), settings)
    if not isinstance(spec, Sequence):
        raise ConfigError(
            f"a staleness rule is a name, a table with a name, or a list of those, got {spec!r}"
        )
    rules = [rule_of(item) for item in spec]
    active = [rule for rule in rules if rule.rescales]
    if len(active) > 1:
        names = " and ".join(type(rule).__name__ for rule in active)
        raise ConfigError(
            f"{names} both rescale an update for its staleness, which would count it twice; "
            "keep one of them"
        )
    return active[0] if active else NoRule()
