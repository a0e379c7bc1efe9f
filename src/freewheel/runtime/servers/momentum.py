"""Momentum on a server whose workers do not wait: what asynchrony adds is taken off."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Literal

from torch.optim import Optimizer

from freewheel.errors import ConfigError

How = Literal["keep", "fold", "lower"]


def corrected(lr: float, momentum: float, how: How, num_workers: int) -> tuple[float, float]:
    """Return the rate and the momentum of the server, for those that the person chose.

    Updates of N workers that do not wait act like momentum 1 - 1/N. With explicit momentum m the
    two together are about 1 - (1 - m) / N, so that ``lower`` keeps the total at the chosen mu by
    ``m = max(0, 1 - N (1 - mu))``; ``fold`` takes m = 0. The rate grows to
    ``lr (1 - m) / (1 - mu)``, so that a constant gradient moves parameters as far as before.

    Args:
        lr: as chosen.
        momentum: as chosen, mu, in [0, 1).
        how: ``keep`` changes nothing.
        num_workers: N, at least 1.

    Example:
        >>> from freewheel.runtime.servers.momentum import corrected
        >>> [tuple(round(x, 6) for x in corrected(0.1, 0.9, how, 4)) for how in ("fold", "lower")]
        [(1.0, 0.0), (0.4, 0.6)]

    References:
        Mitliagkas et al., "Asynchrony begets Momentum, with an Application to Deep Learning", 2016.
    """
    if how == "keep" or not momentum:
        return lr, momentum
    lowered = 0.0 if how == "fold" else max(0.0, 1.0 - num_workers * (1.0 - momentum))
    return lr * (1.0 - lowered) / (1.0 - momentum), lowered


def correct_group(group: MutableMapping[str, Any], how: How, num_workers: int) -> None:
    """Correct one parameter group of an optimizer, in place."""
    if "momentum" in group:
        group["lr"], group["momentum"] = corrected(
            float(group["lr"]), float(group["momentum"]), how, num_workers
        )


def correct(optimizer: Optimizer, how: How, num_workers: int) -> None:
    """Correct an optimizer before its first step.

    Raises:
        ConfigError: it has no momentum to correct.
    """
    if how == "keep":
        return
    if not any(group.get("momentum") for group in optimizer.param_groups):
        raise ConfigError(
            f'layout.server_momentum = "{how}" corrects momentum, and {type(optimizer).__name__} '
            'has none here; leave it out, or set optimizer.momentum (of "sgd" or "rmsprop")'
        )
    for group in optimizer.param_groups:
        correct_group(group, how, num_workers)
